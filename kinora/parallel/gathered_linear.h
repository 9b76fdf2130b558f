#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/comm/group.h"

/// Products of tokens that lie on several ranks with this rank's slice of a weight.
namespace kinora::parallel {

/// Of all ranks' rows: x [R, I] of W ranks, R rows (tokens) a rank, weight [.., I], bias [..] ->
/// [W, R, O]. All of one type. A weight's leading dims stand for its outputs; it need not be
/// contiguous, and is not copied but for the product. The rows travel in a ring, hidden behind the
/// products of what is there, forward and backward: W - 1 exchanges each. Saves x for backward, not
/// what the other ranks sent; that travels again then, and gradients of x the other way.
[[nodiscard]] at::Tensor gather_linear(const comm::Group& group, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& bias);

}  // namespace kinora::parallel
