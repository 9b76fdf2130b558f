#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace kinora::ops {

/// `value`, wired into autograd so that backward adds its gradient to `gradient` in place, with
/// one kernel and in `gradient`'s dtype (fp32), whatever the dtype of `value` (bf16, fp16, fp32).
///
/// value: any shape, a leaf that requires gradients. gradient: same shape, fp32; undefined = no
/// gradient is kept and `value` is returned as it is. Outside of grad mode returns `value`.
[[nodiscard]] at::Tensor with_gradient(const at::Tensor& value, const at::Tensor& gradient);

/// Sets gradients to zero, outside of autograd.
void zero_gradients(const std::vector<at::Tensor>& gradients);

/// While one lives that is on, backward of what this thread wires by with_gradient() overwrites
/// `gradient`: for parameters that a pass uses once, and whose gradients hold nothing yet. The last
/// one made counts.
class OverwriteGradients {
 public:
  explicit OverwriteGradients(bool on);
  OverwriteGradients(const OverwriteGradients&) = delete;
  OverwriteGradients& operator=(const OverwriteGradients&) = delete;
  ~OverwriteGradients();
  [[nodiscard]] static bool is_on();

 private:
  bool before_;
};

}  // namespace kinora::ops
