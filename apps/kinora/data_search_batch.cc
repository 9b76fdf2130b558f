// kinora data search-batch RECIPE [key=value ...]: batch sizes of data.buckets, by measurement.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/train/bench/bucket_search.h"

namespace kinora::apps {
namespace {

/// Three significant digits.
std::string milliseconds(double seconds) {
  return human_rate(seconds * 1e3) + " ms";
}

std::string memory_text(int64_t bytes) {
  return bytes > 0 ? human_bytes(bytes) : "?";
}

void tell(const data::Bucket& bucket, int64_t batch, const std::optional<train::StepCost>& cost) {
  log_info("[search] ", bucket.text(), ": a step of ", batch,
           cost ? " takes " + milliseconds(cost->seconds) + ", " + memory_text(cost->peak_memory)
                : " is out of memory");
}

void print(std::ostream& out, const train::RecipeSearch& search) {
  const train::BucketSearchResult& result = search.result;
  out << "device " << search.device << "\naimed at ";
  if (result.step_seconds > 0.0) {
    out << "steps of " << milliseconds(result.step_seconds);
  } else {
    out << "the largest batches";
  }
  out << ", memory " << (search.memory > 0 ? "up to " + human_bytes(search.memory) : "not limited")
      << "; " << result.num_measured() << " measurements\n"
      << std::left << std::setw(34) << "measured at" << std::right << std::setw(8) << "recipe"
      << std::setw(8) << "batch" << std::setw(12) << "step" << std::setw(12) << "samples/s"
      << std::setw(12) << "memory" << '\n';
  for (const auto& [bucket, found] : result.rows) {
    out << std::left << std::setw(34) << bucket.text() << std::right << std::setw(8)
        << bucket.batch;
    if (found.batch == 0) {
      out << "  does not fit the memory\n";
      continue;
    }
    out << std::setw(8) << found.batch << std::setw(12) << milliseconds(found.cost.seconds)
        << std::setw(12) << human_rate(static_cast<double>(found.batch) / found.cost.seconds)
        << std::setw(12) << memory_text(found.cost.peak_memory) << '\n';
  }
}

nlohmann::ordered_json to_json(const train::RecipeSearch& search, const std::string& block) {
  const train::BucketSearchResult& result = search.result;
  nlohmann::ordered_json json = {{"device", search.device},
                                 {"memory_limit", search.memory},
                                 {"aimed_seconds", result.step_seconds},
                                 {"measurements", result.num_measured()}};
  json["rows"] = nlohmann::json::array();
  for (const auto& [bucket, found] : result.rows) {
    nlohmann::ordered_json row = {{"resolution", bucket.resolution}, {"frames", bucket.frames},
                                  {"height", bucket.height},         {"width", bucket.width},
                                  {"recipe_batch", bucket.batch},    {"batch", found.batch}};
    if (found.batch > 0) {
      row["step_seconds"] = found.cost.seconds;
      row["samples_per_s"] = static_cast<double>(found.batch) / found.cost.seconds;
      row["peak_memory"] = found.cost.peak_memory;
    }
    json["rows"].push_back(std::move(row));
  }
  json["yaml"] = block;
  return json;
}

}  // namespace

int run(const SearchBatchArguments& given) {
  SearchBatchArguments arguments = given;
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  arguments.search.memory = static_cast<int64_t>(arguments.memory_gib * kGiB);
  const train::RecipeSearch search = train::search_buckets(config, arguments.search, tell);
  const ConfigTable rows = train::with_found(config.data.buckets, search.result);
  KINORA_CHECK(
      !rows.empty(), kConfig, "[search] a sample of some row must fit ", human_bytes(search.memory),
      " of memory, got none that does. Hint: a larger --memory-gib, train.recompute=block, "
      "or a smaller model");
  if (rows.size() < config.data.buckets.size()) {
    log_warn("[search] ", config.data.buckets.size() - rows.size(),
             " rows do not fit the memory even with one sample and are left out");
  }
  const std::string block = "data:\n  buckets:\n" + data::bucket_yaml(rows, /*indent=*/4);
  if (!arguments.out.empty()) {
    io::write_file_atomic(arguments.out, block);
    log_info("[search] wrote ", arguments.out);
  }
  if (arguments.json) {
    std::cout << to_json(search, block).dump(2) << '\n';
  } else {
    print(std::cout, search);
    std::cout << block;
  }
  return 0;
}

}  // namespace kinora::apps
