#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::ops {

/// `value`, wired into autograd so that backward adds its gradient into `gradient` in place, with
/// one kernel and in `gradient`'s dtype (fp32), whatever the dtype of `value` (bf16, fp16, fp32).
///
/// value: any shape, a leaf that requires gradients. gradient: same shape, fp32; undefined = no
/// gradient is kept and `value` is returned as it is. Outside of grad mode returns `value`.
[[nodiscard]] at::Tensor with_gradient(const at::Tensor& value, const at::Tensor& gradient);

}  // namespace kinora::ops
