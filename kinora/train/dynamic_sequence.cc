#include "kinora/train/dynamic_sequence.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/core/text_table.h"
#include "kinora/data/data_config.h"
#include "kinora/device/device.h"
#include "kinora/device/free_memory.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/random_batch.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kCostOfDoubling = 1.1;

size_t num_degrees(const RunConfig& config) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(config.parallel.sp_size)));
}

/// The largest of all ranks' values.
std::vector<int64_t> largest(const std::vector<int64_t>& values, const comm::Group& world) {
  const at::Tensor all = at::tensor(values, at::kLong);
  world.all_reduce(all, comm::Reduction::kMax);
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

/// Of a bucket, from the most ranks downwards.
parallel::SecondsByDegree measured(const data::Bucket& bucket, const RunConfig& config,
                                   TrainingStep& step, at::Device device,
                                   const comm::Group& world) {
  constexpr double kFragments = 1.1;
  constexpr double kLong = 0.5;  // seconds that one pass tells well
  const data::Batch batch =
      random_batch(config.model, sample_shape(config, bucket.pixels()), /*first=*/0, bucket.batch,
                   /*text_length=*/0, device);
  parallel::SecondsByDegree seconds(num_degrees(config), kNever);
  int64_t needed = 0;  // bytes, by what twice the ranks took
  bool is_long = false;
  for (size_t degree = seconds.size(); degree-- > 0;) {
    start_memory_anew(device);
    const int64_t before = device::peak_memory(device);
    if (largest({needed - device::free_memory(device)}, world).front() > 0) {
      break;
    }
    // On a GPU the first calls time the ways to compute a product.
    const int64_t warmup = device.is_cuda() ? 3 : (is_long ? 0 : 1);
    const double own = step.pass_seconds(batch, int64_t{1} << degree, warmup, is_long ? 1 : 2);
    const std::vector<int64_t> most =
        largest({static_cast<int64_t>(own * 1e9), device::peak_memory(device) - before}, world);
    seconds[degree] = static_cast<double>(most[0]) / 1e9;
    needed = static_cast<int64_t>(2.0 * kFragments * static_cast<double>(most[1]));
    is_long = seconds[degree] > kLong;
  }
  return seconds;
}

}  // namespace

std::vector<data::Bucket> largest_of_rows(const RunConfig& config) {
  const data::BucketTable table(data::loader_options(config.data).buckets);
  std::map<int64_t, data::Bucket> largest;
  for (const data::Bucket& bucket : table.buckets()) {
    data::Bucket& known = largest.try_emplace(bucket.row, bucket).first->second;
    if (bucket.height * bucket.width > known.height * known.width) {
      known = bucket;
    }
  }
  std::vector<data::Bucket> rows;
  for (const auto& [row, bucket] : largest) {
    rows.push_back(bucket);
  }
  return rows;
}

void check_dynamic_sequence(const RunConfig& config) {
  if (!config.dynamic_sequence) {
    return;
  }
  const PluginConfig& parallel = config.parallel;
  const auto refuse_unless = [](bool is_so, const char* what, const char* hint) {
    KINORA_CHECK(is_so, kConfig, "[sequence] parallel.dynamic_sequence does not go with ", what,
                 ". Hint: ", hint);
  };
  KINORA_CHECK(
      std::has_single_bit(static_cast<uint64_t>(parallel.sp_size)), kConfig,
      "[sequence] with parallel.dynamic_sequence parallel.sequence must be a power of two, "
      "the most ranks of a sample, got ",
      parallel.sp_size);
  refuse_unless(parallel.tp_size == 1, "parallel.tensor", "parallel.tensor=1");
  refuse_unless(parallel.pp_size == 1, "parallel.pipeline", "parallel.pipeline=1");
  const int stage = zero_stage(config.plugin, parallel);
  refuse_unless(config.plugin != "gemini" && stage <= 2,
                "weights that are gathered in each pass (zero_stage 3, gemini), since ranks have "
                "different passes",
                "parallel.zero_stage=1");
  refuse_unless(
      stage < 2 || !parallel.reduce_each_micro_batch,
      "gradients that are reduced after each micro-batch, since ranks have different ones",
      "parallel.reduce_each_micro_batch=false, or parallel.zero_stage=1");
  refuse_unless(!config.optim.in_backward, "optim.in_backward", "optim.in_backward=false");
  refuse_unless(config.optim.offload_weights == 0.0, "optim.offload_weights",
                "optim.offload_weights=0");
  refuse_unless(
      config.train.vram_budget == "none" && config.train.oom == OutOfMemory::kStop,
      "train.vram_budget and train.oom=replan, whose plans are of parallel.sequence ranks",
      "train.vram_budget=none, train.oom=stop");
  refuse_unless(!config.image_steps.any() && !config.prior.any(), "image_data and prior_data",
                "pictures in data.buckets, as rows of 1 frame");
  refuse_unless(config.objective.timestep_sampling !=
                    diffusion::ObjectiveConfig::TimestepSampling::kImportance,
                "objective.timestep_sampling=importance", "another one");
}

SecondsOfRows counted_seconds(const RunConfig& config) {
  SecondsOfRows rows;
  for (const data::Bucket& bucket : largest_of_rows(config)) {
    const std::vector<int64_t> shape = sample_shape(config, bucket.pixels());  // [C, (T,) h, w]
    models::ModelConfig model = config.model;
    model.frames = shape.size() == 4 ? shape[1] : 1;
    model.height = shape[shape.size() - 2];
    model.width = shape.back();
    double cost = 1e-12 * models::forward_macs(model) * static_cast<double>(bucket.batch);
    parallel::SecondsByDegree& seconds = rows.emplace_back();
    for (size_t degree = 0; degree < num_degrees(config); ++degree) {
      seconds.push_back(cost);
      cost *= kCostOfDoubling / 2.0;
    }
  }
  return rows;
}

SecondsOfRows seconds_by_degree(const RunConfig& config, TrainingStep& step, at::Device device,
                                const comm::Group& world) {
  const std::vector<data::Bucket> buckets = largest_of_rows(config);
  if (world.size() == 1) {
    return counted_seconds(config);
  }
  if (config.deterministic || config.train.fp8) {
    // Gathers of the first steps want all ranks to know in which order weights are used, and fp8
    // measures in the first one.
    (void)step.pass_seconds(
        random_batch(config.model, sample_shape(config, buckets.back().pixels()),
                     /*first=*/0, /*size=*/1, /*text_length=*/0, device),
        config.parallel.sp_size, /*warmup=*/0, /*passes=*/1);
  }
  if (config.deterministic) {
    return counted_seconds(config);
  }
  const bool speaks = world.rank() == 0;
  if (speaks) {
    log_info("[train] parallel.dynamic_sequence: times ", counted(std::ssize(buckets), "size"),
             " on 1 to ", config.parallel.sp_size, " ranks");
  }
  SecondsOfRows rows;
  for (const data::Bucket& bucket : buckets) {
    rows.push_back(measured(bucket, config, step, device, world));
  }
  if (speaks) {
    log_info(
        "[train] parallel.dynamic_sequence: a batch of each size by the ranks that divide it\n",
        describe(rows, config, world.size(), "s"));
  }
  return rows;
}

data::ShareOut share_out(SecondsOfRows seconds, const comm::Group& world) {
  return [seconds = std::move(seconds), rank = world.rank(),
          ranks = world.size()](const std::vector<data::Bucket>& step) {
    std::vector<size_t> kinds;
    for (const data::Bucket& bucket : step) {
      kinds.push_back(static_cast<size_t>(bucket.row));
    }
    std::vector<data::OwnBatch> own;
    for (const auto& placed : parallel::schedule_sequences(kinds, seconds, ranks).passes) {
      if (placed.is_of(rank)) {
        own.push_back({.batch = placed.pass, .ranks = placed.ranks});
      }
    }
    return own;
  };
}

std::string describe(const SecondsOfRows& seconds, const RunConfig& config, int64_t ranks,
                     const std::string& unit) {
  const std::vector<data::Bucket> rows = largest_of_rows(config);
  std::vector<size_t> kinds(rows.size());
  std::iota(kinds.begin(), kinds.end(), size_t{0});
  const parallel::SequenceSchedule schedule = parallel::schedule_sequences(kinds, seconds, ranks);
  std::vector<std::string> head = {"size", "batch"};
  for (size_t degree = 0; degree < num_degrees(config); ++degree) {
    head.push_back(std::to_string(int64_t{1} << degree) + ", " + unit);
  }
  head.emplace_back("chosen");
  std::vector<std::vector<std::string>> table = {head};
  for (size_t row = 0; row < rows.size(); ++row) {
    std::vector<std::string>& line = table.emplace_back();
    line = {rows[row].text(), std::to_string(rows[row].batch)};
    for (const double value : seconds[row]) {
      line.push_back(std::isfinite(value) ? human_number(value, 3) : "-");
    }
    const auto placed = std::ranges::find(schedule.passes, row, &parallel::PlacedPass::pass);
    line.push_back(std::to_string(placed->ranks));
  }
  return text_table(table) + "\nin a step of one of each the ranks compute " +
         human_number(100.0 * schedule.busy / (schedule.seconds * static_cast<double>(ranks)), 3) +
         " % of the time";
}

}  // namespace kinora::train
