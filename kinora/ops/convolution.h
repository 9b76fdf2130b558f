#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace kinora::ops {

/// Elements that one call of cuDNN or of ATen's kernels may see in a tensor.
inline constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

struct ConvolutionOptions {
  std::vector<int64_t> stride;                  ///< one a spatial dim
  std::vector<std::array<int64_t, 2>> padding;  ///< zeros before and after, one a spatial dim
  int64_t groups = 1;
  at::Tensor plus = {};  ///< [B, O, spatial...], added to the result; undefined: nothing
};

/// Cross-correlation of x [B, C, spatial...] with weight [O, C / groups, kernel...] and bias [O]
/// (may be undefined), all of one dtype: [B, O, spatial...]. 1 to 3 spatial dims. Tensors of more
/// than `max_elements` are computed in pieces of the batch and of the first spatial dim: the same
/// sums, and gradients that are the sums of the pieces'. kShape.
[[nodiscard]] at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, const ConvolutionOptions& options,
                                  int64_t max_elements = kMaxElements);

/// A 3 x 3 convolution of x [B, C, H, W] with every row and column twice (nearest neighbours) and
/// zeros around, [B, O, 2 H, 2 W], of x itself: an output sees 2 x 2 places of x, with sums of the
/// weights, so 4 / 9 of the products and no doubled x. phases: doubled_phases(weight). `rows`:
/// zeros above and below x; without them x's first (last) row is only seen, not doubled. Result:
/// channels_last. kShape.
[[nodiscard]] at::Tensor convolve_doubled(const at::Tensor& x, const at::Tensor& phases,
                                          const at::Tensor& bias,
                                          std::array<int64_t, 2> rows = {1, 1});
/// weight [O, C, 3, 3] as convolve_doubled() reads it: [4 O, C, 2, 2], channels_last. kShape.
[[nodiscard]] at::Tensor doubled_phases(const at::Tensor& weight);

/// A 3 x 3 x 3 convolution of a clip with every row and column twice and every frame `times` (1 or
/// 2) times, less the `left_out` first ones of these, of the clip itself, without gradients: an
/// output sees 2 x 2 places of it, and 2 frames where these come twice, with sums of the weights,
/// so 12 or 8 of 27 products.
///
/// x: [B, C, k + T, 1 + H + 1, 1 + W + 1], the clip with what is seen around it, k = 2 / times
/// frames before it. weight: [O, C, 3, 3, 3], bias: [O] or undefined. Result: [B, O, times T -
/// left_out, 2 H, 2 W], channels_last. kShape.
[[nodiscard]] at::Tensor convolve_doubled_clip(const at::Tensor& x, const at::Tensor& weight,
                                               const at::Tensor& bias, int64_t times,
                                               int64_t left_out);

}  // namespace kinora::ops
