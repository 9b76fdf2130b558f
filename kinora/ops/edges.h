#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kinora::ops {

/// x with its first and last slices repeated: `counts` has how often, before and after, one entry a
/// dim of the last ones. [..., D] -> [..., before + D + after]. Keeps x's memory layout; one pass
/// over x, whatever the number of dims.
[[nodiscard]] at::Tensor repeat_edges(const at::Tensor& x,
                                      const std::vector<std::array<int64_t, 2>>& counts);

/// x [B, C, (T,) H, W] with every row and column twice, and every frame `frames` times: nearest
/// neighbours. channels_last.
[[nodiscard]] at::Tensor repeat_places(const at::Tensor& x, int64_t frames = 1);

/// repeat_edges(repeat_places(x, frames) less what `left_out` says, edges) of a clip x [B, C, T, H,
/// W]: both have entries for T, H and W. Without gradients, on a GPU and channels_last, one pass.
[[nodiscard]] at::Tensor repeat_places_with_edges(
    const at::Tensor& x, int64_t frames, const std::vector<std::array<int64_t, 2>>& left_out,
    const std::vector<std::array<int64_t, 2>>& edges);

/// at::cat(parts, dim) of images or clips along a dim of places. Where all have their channels side
/// by side, also as rows of larger ones, and nobody wants gradients, in vectors of 16 bytes: what
/// is not contiguous libtorch copies element by element.
[[nodiscard]] at::Tensor cat_places(const std::vector<at::Tensor>& parts, int64_t dim);
/// x.contiguous(channels_last), likewise.
[[nodiscard]] at::Tensor packed_places(const at::Tensor& x);

}  // namespace kinora::ops
