#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::eval {

/// The squared maximum mean discrepancy under the kernel (x.y / D + 1)^3 (Binkowski et al. 2018,
/// "KID" where the features are Inception's), without bias: kernels of a sample with itself are
/// left out. Over all pairs of both sets at once; published code averages random subsets instead,
/// which has the same expectation. May be slightly negative. Computed in double by blocks.
///
/// samples, reference: features [N, D], [M, D] of any floating type. kShape unless of one D and
/// both with at least 2 rows.
[[nodiscard]] double kernel_distance(const at::Tensor& samples, const at::Tensor& reference);

}  // namespace kinora::eval
