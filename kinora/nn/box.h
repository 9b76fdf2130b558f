#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kinora::nn {

/// A stretch of a dim that ranks can divide: so many equal units, of which each stays whole, a head
/// for instance.
struct Stretch {
  int64_t size = 0;
  int64_t units = 1;
};

/// Elements one behind the other, in C order, both in a whole tensor and in one of its boxes.
struct BoxRun {
  int64_t index = 0;  ///< of the box
  int64_t whole = 0;  ///< the first's place in the whole tensor
  int64_t own = 0;    ///< and in the box
  int64_t size = 0;
};

/// Which part of a parameter is here, where the ranks of a group divide it (tensor parallelism):
/// of each stretch of one dim the run of number `index` of `count` equal ones.
///
///   qkv [3 C, C] of H heads on 2 ranks: dim 0 in stretches {C, C, C}; rank 0 has heads 0 to
///   H / 2 - 1 of each: [3 C / 2, C].
struct Box {
  std::vector<int64_t> whole = {};  ///< the parameter's shape where nobody divides it
  int64_t dim = 0;
  std::vector<int64_t> stretches =
      {};  ///< lengths along dim, one behind the other, multiples of count
  int64_t index = 0;
  int64_t count = 1;

  bool operator==(const Box&) const = default;
  /// What is here.
  [[nodiscard]] std::vector<int64_t> shape() const;
  /// This part of a whole tensor: contiguous.
  [[nodiscard]] at::Tensor cut(const at::Tensor& whole_tensor) const;
  /// The whole tensor from the parts of all, by index.
  [[nodiscard]] at::Tensor join(const std::vector<at::Tensor>& parts) const;
  /// What follows element number `own` of this box.
  [[nodiscard]] BoxRun run_of_own(int64_t own) const;
  /// What follows element number `element` of the whole tensor, in whichever box has it.
  [[nodiscard]] BoxRun run_of_whole(int64_t element) const;
};

}  // namespace kinora::nn
