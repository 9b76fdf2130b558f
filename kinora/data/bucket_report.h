#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "kinora/data/bucket_order.h"
#include "kinora/data/source.h"

/// What an epoch makes of a set and its buckets, before anything is trained.
namespace kinora::data {

/// A bucket in the first epoch.
struct BucketUse {
  Bucket bucket;
  int64_t num_samples = 0;   ///< that it takes
  int64_t step_samples = 1;  ///< of a step: its batch, once for each batch of a step

  [[nodiscard]] int64_t steps() const { return num_samples / step_samples; }
  /// What it has when the epoch ends, too few for a step.
  [[nodiscard]] int64_t num_waiting() const { return num_samples % step_samples; }
  /// Whether it takes samples, but not enough for one step of the epoch.
  [[nodiscard]] bool is_short() const { return num_samples > 0 && steps() == 0; }
};

/// The same buckets with all batch sizes multiplied by `factor`, rounded down, at least 1.
struct ScaledBatches {
  double factor = 1.0;
  int64_t steps = 0;              ///< of an epoch
  int64_t num_waiting = 0;        ///< samples, at its end
  int64_t num_short_buckets = 0;  ///< see BucketUse::is_short()
};

struct BucketReport {
  uint64_t seed = 0;
  int64_t batches_per_step = 1;
  int64_t num_samples = 0;         ///< of the set, those of validation not among them
  int64_t num_not_kept = 0;        ///< that suit a bucket, but that chance leaves out of the epoch
  std::vector<BucketUse> buckets;  ///< all, in the order of BucketTable::buckets()
  std::vector<MisfitGroup> left_out;  ///< that suit none

  [[nodiscard]] int64_t num_taken() const;
  /// For a quarter of the batch sizes, half of them, as they are, twice and four times as much.
  [[nodiscard]] std::vector<ScaledBatches> scaled() const;
};

/// Of the first epoch of a run on `source`: the same samples in the same buckets. Errors as
/// BucketOrder.
[[nodiscard]] BucketReport report_on_buckets(const Source& source,
                                             const BucketOrderOptions& options);

/// Writes it as text: a line for each bucket that takes samples, and the empty ones by row.
void print(std::ostream& out, const BucketReport& report);

}  // namespace kinora::data
