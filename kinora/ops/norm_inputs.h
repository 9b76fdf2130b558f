#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <unordered_map>

#include "kinora/ops/block_kernels.h"

namespace kinora::ops {

/// What a modulated norm was made of: BlockKernels::modulated_norm() makes it again.
struct NormInput {
  at::Tensor x;         ///< [R, C]
  SeamVectors vectors;  ///< without gate
};

/// Modulated norms on their way to the linears that read them, found by their memory: tokens may be
/// viewed in between, but not moved. None of them is kept alive.
class NormInputs {
 public:
  /// h: of the shape of input.x. Forgets those that are gone.
  void add(const at::Tensor& h, NormInput input);
  void forget_gone();

  /// What `rows` [R, C], contiguous, was made of; null where it is no norm of add(), such as one
  /// that was gathered from several ranks.
  [[nodiscard]] const NormInput* find(const at::Tensor& rows) const;

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // keeps its address from being used again
    NormInput input;
  };
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace kinora::ops
