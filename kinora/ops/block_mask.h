#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "kinora/kernels/attention.h"

namespace kinora::ops {

/// Which blocks of kernels::BlockMask::kRows queries attend to which blocks of as many keys, in all
/// heads and samples.
class BlockMask {
 public:
  /// attended: bool [blocks of queries, blocks of keys]. kShape unless each block of queries
  /// attends to at least one.
  BlockMask(const at::Tensor& attended, at::Device device);

  /// For kernels; valid as long as this object.
  [[nodiscard]] kernels::BlockMask view() const;
  /// Of single rows: bool [queries, keys]. kShape unless they have as many blocks.
  [[nodiscard]] at::Tensor of_rows(int64_t queries, int64_t keys) const;
  /// Pairs of blocks that attend, of all pairs.
  [[nodiscard]] double density() const { return density_; }

 private:
  at::Tensor attended_;                      // on the device
  at::Tensor key_offsets_, key_blocks_;      // int32
  at::Tensor query_offsets_, query_blocks_;  // likewise
  double density_ = 1.0;
};

/// Which keys are attended to, of those that there are: all that both of these leave.
struct AttendedKeys {
  /// int32 [B], each in [0, L]: only so many keys of a sample. Undefined: all. A sample without
  /// keys gives zeros.
  at::Tensor lengths{};
  std::shared_ptr<const BlockMask> blocks{};  ///< null: all
};

}  // namespace kinora::ops
