#include "kinora/train/bench/bucket_search.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/benchmark_step.h"

namespace kinora::train {
namespace {

std::string name_of(const ConfigTableRow& row) {
  return row.first + ":" + std::to_string(row.second);
}

/// That with the most pixels of each row, in the order of `rows`.
std::vector<data::Bucket> largest_of_rows(const data::BucketOptions& options) {
  const data::BucketTable table(options);
  std::vector<data::Bucket> largest;
  for (const ConfigTableRow& row : options.rows) {
    data::Bucket best;
    for (const data::Bucket& bucket : table.buckets()) {
      if (bucket.resolution == row.first && bucket.frames == row.second &&
          bucket.height * bucket.width > best.height * best.width) {
        best = bucket;
      }
    }
    largest.push_back(best);
  }
  return largest;
}

size_t base_row(const ConfigTable& rows, const std::string& name) {
  if (name.empty()) {
    return 0;
  }
  const auto row = std::ranges::find(rows, name, name_of);
  std::string names;
  for (const ConfigTableRow& known : rows) {
    names += (names.empty() ? "" : ", ") + name_of(known);
  }
  KINORA_CHECK(row != rows.end(), kConfig, "[search] the base must be a row of data.buckets (",
               names, "), got ", name);
  return static_cast<size_t>(row - rows.begin());
}

}  // namespace

int64_t BucketSearchResult::num_measured() const {
  return std::transform_reduce(rows.begin(), rows.end(), int64_t{0}, std::plus<>(),
                               [](const FoundRow& row) { return row.found.num_measured; });
}

BucketSearchResult search_buckets(const data::BucketOptions& buckets,
                                  const BucketSearchOptions& options,
                                  const MeasureBucket& measure) {
  const std::vector<data::Bucket> largest = largest_of_rows(buckets);
  CostLimits limits;
  if (options.memory > 0) {
    limits.memory = options.memory;
  }
  BucketSearchResult result;
  std::optional<size_t> base;
  FoundBatch of_base;
  if (!options.largest) {
    result.step_seconds = options.step_seconds;
    if (options.step_seconds == 0.0) {
      base = base_row(buckets.rows, options.base);
      const data::Bucket& bucket = largest[*base];
      const std::optional<StepCost> cost = measure(bucket, bucket.batch);
      KINORA_CHECK(cost && cost->peak_memory <= limits.memory, kConfig, "[search] a step of ",
                   bucket.batch, " samples of the base, ", bucket.text(),
                   ", must fit the memory, got one that ",
                   cost ? "takes " + human_bytes(cost->peak_memory) : "does not",
                   ". Hint: a smaller batch in that row, or another --base");
      of_base = {.batch = bucket.batch, .cost = *cost, .num_measured = 1};
      result.step_seconds = cost->seconds;
    }
    limits.seconds = result.step_seconds;
  }
  for (size_t i = 0; i < largest.size(); ++i) {
    const data::Bucket& bucket = largest[i];
    const auto cost_of = [&](int64_t batch) { return measure(bucket, batch); };
    result.rows.push_back(
        {.bucket = bucket,
         .found = base == i ? of_base : find_batch(cost_of, limits, bucket.batch)});
  }
  return result;
}

RecipeSearch search_buckets(
    const RunConfig& config, BucketSearchOptions options,
    const std::function<void(const data::Bucket&, int64_t batch, const std::optional<StepCost>&)>&
        on_measured) {
  const at::Device device = inference::choose_device(config.train.device);
  start_memory_anew(device);
  if (options.memory == 0 && device.is_cuda()) {
    constexpr int64_t kTenths = 9;  // the rest for gaps between tensors
    options.memory = cuda_free_memory(device.index()) / 10 * kTenths;
  }
  KINORA_CHECK(options.memory > 0 || !options.largest, kConfig,
               "[search] the largest batches of a CPU need a limit of memory, got none. Hint: "
               "--memory-gib");
  KINORA_CHECK(options.memory == 0 || device.is_cuda() || start_resident_peak_anew(), kIo,
               "[search] the memory of a process must be measured anew by /proc/self/clear_refs, "
               "which this system refuses. Hint: leave --memory-gib out");
  auto timer = std::make_unique<StepTimer>(config);
  const MeasureBucket measure = [&](const data::Bucket& bucket,
                                    int64_t batch) -> std::optional<StepCost> {
    std::optional<StepCost> cost;
    try {
      cost = timer->time({.frames = bucket.frames, .height = bucket.height, .width = bucket.width},
                         batch);
    } catch (...) {
      if (!caught_out_of_memory()) {
        throw;
      }
    }
    if (!cost) {  // what was on its way in model and optimizer is gone: made anew
      timer.reset();
      timer = std::make_unique<StepTimer>(config);
    }
    on_measured(bucket, batch, cost);
    return cost;
  };
  const data::BucketOptions buckets = data::loader_options(config.data).buckets;
  return {.device = device::describe(device),
          .memory = options.memory,
          .result = search_buckets(buckets, options, measure)};
}

ConfigTable with_found(ConfigTable rows, const BucketSearchResult& result) {
  ConfigTable found;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t batch = result.rows[i].found.batch;
    if (batch > 0) {
      rows[i].numbers.back() = static_cast<double>(batch);
      found.push_back(std::move(rows[i]));
    }
  }
  return found;
}

}  // namespace kinora::train
