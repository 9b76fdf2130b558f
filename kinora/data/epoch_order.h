#pragma once

#include <cstdint>
#include <vector>

namespace kinora::data {

/// Steps of the kDataOrder streams, so that the epochs, the split and whose samples a training step
/// takes draw different numbers.
inline constexpr uint32_t kEpochStep = 0;
inline constexpr uint32_t kSplitStep = 1;
inline constexpr uint32_t kKindStep = 2;

/// The endless order in which samples are drawn. Position p of the stream lies in epoch p / count;
/// every epoch is a shuffle of its own of all samples, keyed by (seed, epoch). It depends on
/// nothing else: not on ranks, batch sizes or where a run was resumed.
///
/// Holds the shuffle of one epoch (4 bytes a sample); not thread-safe.
class EpochOrder {
 public:
  /// `count` from 1 to 2^32 - 1.
  EpochOrder(int64_t count, uint64_t seed);

  /// The index of the sample at `position` >= 0.
  [[nodiscard]] int64_t at(int64_t position);

  /// What stands in for the sample at `position` at the `attempt`-th (1, 2, ... count - 1) try if
  /// it cannot be read: the sample so many places on in the same epoch, from its end to its start.
  [[nodiscard]] int64_t replacement(int64_t position, int64_t attempt);

 private:
  void shuffle(int64_t epoch);

  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<uint32_t> order_;
};

/// Disjoint parts of [0, count), each in ascending order.
struct Split {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
};

/// Draws `validation_count` indices at random, keyed by `seed` only. Throws Error (kConfig) unless
/// at least 2 remain for training.
[[nodiscard]] Split split(int64_t count, int64_t validation_count, uint64_t seed);

}  // namespace kinora::data
