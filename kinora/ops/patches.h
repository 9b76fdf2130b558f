#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Images as rows of patches and back, differentiable. One kernel on a GPU that has ours; composed
/// elsewhere. Tokens lie row by row of the image's grid of patches.
namespace kinora::ops {

/// image: [B, C, H, W], H and W multiples of `patch`. Returns [B, N, C P P] of `type`, a token's
/// elements in the order [C, P, P] of a convolution's weight. Error kShape.
[[nodiscard]] at::Tensor patchify(const at::Tensor& image, int64_t patch, at::ScalarType type);

/// tokens: [B, N, P P C], elements in the order [P, P, C] of DiT's final layer. Returns
/// [B, C, height, width], in fp32 (fp64 for fp64 tokens). Error kShape.
[[nodiscard]] at::Tensor unpatchify(const at::Tensor& tokens, int64_t height, int64_t width,
                                    int64_t patch);

}  // namespace kinora::ops
