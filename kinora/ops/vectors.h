#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

/// Copies in vectors of 16 bytes: what is not contiguous libtorch copies element by element.
namespace kinora::ops {

/// x, whose last dim has elements side by side, in such vectors: a view, for copies alone. Nothing
/// where x is not made of them, or somebody wants gradients.
[[nodiscard]] std::optional<at::Tensor> in_vectors(const at::Tensor& x);

/// to.copy_(from) of the same shape and type, in vectors where both are made of them. Without
/// gradients.
void copy_in_vectors(const at::Tensor& from, const at::Tensor& to);

}  // namespace kinora::ops
