#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace kinora::ops {

/// Where a model stands with the parameters of a bucket (nn::BucketSpec, by its place in the
/// model's list).
enum class BucketMoment : uint8_t {
  kBeforeForward,   ///< they are read from now on
  kAfterForward,    ///< and no longer
  kBeforeBackward,  ///< they are read, and gradients added, from now on
  kAfterBackward,   ///< and no longer: the gradients of this pass are complete
};

/// What a model calls at these moments of the buckets that belong to a ring: the seam by which
/// state that is divided or offloaded comes and goes. Between "before" and "after" of a bucket come
/// calls for others. May be empty.
using BucketHook = std::function<void(BucketMoment moment, int64_t bucket)>;

/// `x`, so that backward comes to here also where all before it is frozen.
[[nodiscard]] at::Tensor wanting_gradient(const at::Tensor& x);

/// `streams`; `action` runs once, when backward has come back to here by all of them: all that was
/// computed from the results has its gradients. Outside of grad mode it never runs.
[[nodiscard]] std::vector<at::Tensor> on_backward(std::vector<at::Tensor> streams,
                                                  std::function<void()> action);
[[nodiscard]] at::Tensor on_backward(const at::Tensor& x, std::function<void()> action);

}  // namespace kinora::ops
