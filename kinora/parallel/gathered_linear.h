#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/comm/group.h"

/// Products of tokens that lie on several ranks with a slice of a weight: the two halves of tensor
/// parallelism with sequence parallelism (Korthikanti et al. 2022, "Reducing activation
/// recomputation in large transformer models"). What travels does so in a ring, hidden behind the
/// products of what is there, forward and backward: W - 1 exchanges each.
///
/// Shapes: W ranks, R rows (tokens) a rank, inputs I, outputs O. All tensors of one type. A
/// weight's leading dims stand for its outputs; it need not be contiguous, and is not copied but
/// for the product.
namespace kinora::parallel {

/// The products of all ranks' rows with this rank's slice of a weight: x [R, I], weight [.., I],
/// bias [..] -> [W, R, O]. Saves x for backward, not what the other ranks sent; that travels again
/// then, and gradients of x the other way.
[[nodiscard]] at::Tensor gather_linear(const comm::Group& group, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& bias);

/// The sum over ranks of the products of this rank's rows with their slices of inputs and weight:
/// x [W, R, I], weight [O, I] -> [R, O]. The sums travel in x's type. Backward gathers gradients.
[[nodiscard]] at::Tensor linear_scatter(const comm::Group& group, const at::Tensor& x,
                                        const at::Tensor& weight);

}  // namespace kinora::parallel
