#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/config_table.h"
#include "kinora/data/bucket.h"
#include "kinora/train/bench/batch_search.h"
#include "kinora/train/run_config.h"

/// Which batch size each row of data.buckets should have, by measurement (Open-Sora's
/// search_bs.py).
namespace kinora::train {

struct BucketSearchOptions {
  bool largest = false;  ///< that fits the memory, whatever its time; else all steps take as long
  double step_seconds = 0.0;  ///< 0: as long as those of `base` at its batch size
  std::string base = {};      ///< a row as "256px:16", resolution and frames; empty: the first one
  int64_t memory = 0;         ///< bytes; 0: no limit
};

/// A row of data.buckets.
struct FoundRow {
  data::Bucket bucket;  ///< that it was measured at; with the recipe's batch
  FoundBatch found;
};

struct BucketSearchResult {
  double step_seconds = 0.0;   ///< that were aimed at; 0: none
  std::vector<FoundRow> rows;  ///< in the recipe's order

  [[nodiscard]] int64_t num_measured() const;
};

/// The cost of a step of so many samples of a bucket; nothing if the memory does not suffice.
using MeasureBucket =
    std::function<std::optional<StepCost>(const data::Bucket& bucket, int64_t batch)>;

/// Looks for the batch of each row at its largest aspect ratio, since the row's others have to do
/// with it: find_batch() from the recipe's batch on. kConfig: no rows, no such base, or a base
/// whose batch does not fit the memory; errors of BucketTable.
[[nodiscard]] BucketSearchResult search_buckets(const data::BucketOptions& buckets,
                                                const BucketSearchOptions& options,
                                                const MeasureBucket& measure);

/// The same of a recipe, by steps on its device. Without options.memory that of a GPU is limited to
/// nine tenths of what is free, that of a CPU (the whole process's) is not: largest is then
/// kConfig. `on_measured` is told of each measurement.
struct RecipeSearch {
  std::string device;
  int64_t memory = 0;  ///< bytes that were allowed; 0: no limit
  BucketSearchResult result;
};
[[nodiscard]] RecipeSearch search_buckets(
    const RunConfig& config, BucketSearchOptions options,
    const std::function<void(const data::Bucket&, int64_t batch, const std::optional<StepCost>&)>&
        on_measured);

/// `rows` with the batches that were found; without those of which not even one sample fits.
[[nodiscard]] ConfigTable with_found(ConfigTable rows, const BucketSearchResult& result);

}  // namespace kinora::train
