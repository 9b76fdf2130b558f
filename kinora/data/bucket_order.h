#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/bucket.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/source.h"

namespace kinora::data {

struct BucketOrderOptions {
  BucketOptions table;
  int64_t batches_per_step = 1;  ///< of all ranks; those of a step are of one bucket
  uint64_t seed = 0;             ///< keys order and what probabilities decide
  int64_t num_threads = 1;       ///< that look at the samples' headers
  int64_t max_bad = -1;          ///< see BadSamples
};

/// What all ranks take in one step: samples of one bucket.
struct BucketStep {
  int64_t bucket = 0;
  int64_t first_position = 0;    ///< of the first sample in the stream
  std::vector<int64_t> indices;  ///< batches_per_step times the bucket's batch
};

/// Samples that no bucket takes, for one cause.
struct MisfitGroup {
  std::string cause;  ///< "unreadable", or as BucketTable::misfit
  int64_t count = 0;
  std::string first;  ///< the first one's name
};

/// The endless order in which steps draw samples of many sizes. Samples come in the order of
/// EpochOrder and wait in the bucket that takes them in this epoch; a bucket that has enough for a
/// step gives it. What waits at the end of an epoch waits on, so that a sample is seen once for
/// each epoch in which a bucket takes it. It depends on the samples, the table, batches_per_step
/// and the seed alone, and counts positions in samples.
class BucketOrder {
 public:
  /// Looks at all samples' headers and logs which no bucket can take, and why. Error (kConfig): no
  /// sample suits a bucket; latents of other sizes; as BucketTable. (kIo): too many unreadable
  /// ones.
  BucketOrder(const Source& source, const BucketOrderOptions& options);

  [[nodiscard]] const BucketTable& table() const { return table_; }

  /// What no bucket takes in any epoch, by cause.
  [[nodiscard]] const std::vector<MisfitGroup>& left_out() const { return left_out_; }

  /// How many samples each bucket takes in `epoch`.
  [[nodiscard]] std::vector<int64_t> counts(int64_t epoch) const;

  /// Error (kConfig): the probabilities leave out all samples of an epoch.
  [[nodiscard]] BucketStep next();

  /// As if the steps before `position` had been taken, by drawing them again, some 10 million
  /// samples a second. Whether a step begins there; if none does (the set or the buckets have
  /// changed), the first one behind it is next.
  [[nodiscard]] bool seek(int64_t position);

  /// What stands in for sample `index` of `bucket` at the `attempt`-th try if it cannot be read:
  /// the sample so many places on in the source; -1 if the bucket is not for that. Once all have
  /// been tried, those of other ratios will do, unless samples are latents, which have one.
  [[nodiscard]] int64_t replacement(int64_t bucket, int64_t index, int64_t attempt) const;
  /// Tries beyond which there is nothing else.
  [[nodiscard]] int64_t num_attempts() const { return num_attempts_; }

 private:
  // Of a sample; height 0: it cannot be used.
  struct Size {
    int32_t height = 0;
    int32_t width = 0;
    int32_t num_frames = 0;
    float fps = 0.0F;
  };

  void look_at(const Source& source, const BucketOrderOptions& options);
  void find_misfits(const Source& source);
  void check_latents(const Source& source) const;
  [[nodiscard]] SampleFacts facts(int64_t index) const;
  [[nodiscard]] std::optional<int64_t> bucket_of(int64_t index, int64_t epoch) const;

  BucketTable table_;
  EpochOrder order_;
  uint64_t seed_;
  int64_t batches_per_step_;
  std::vector<Size> sizes_;
  int64_t num_attempts_;
  std::vector<MisfitGroup> left_out_;
  std::vector<std::vector<int64_t>> waiting_;  // by bucket
  int64_t num_drawn_ = 0;                      // from order_
  int64_t last_taken_ = 0;                     // num_drawn_ behind the last that a bucket took
  int64_t position_ = 0;
};

}  // namespace kinora::data
