#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

/// What GroupNorm is made of, and a norm over channels. Without gradients, on a GPU and
/// channels_last, by one kernel; else by ATen's calls.
namespace kinora::ops {

/// Sums over all places of x [B, C, spatial...] and of its squares: fp64 [2, B, C].
[[nodiscard]] at::Tensor channel_moments(const at::Tensor& x);

/// f(x * scale + shift), f = silu or nothing, scale and shift [B, C], of at least fp32, as the
/// arithmetic is. Returns x's shape, type and memory layout: a new tensor, or x itself,
/// overwritten, which only makes sense without gradients.
[[nodiscard]] at::Tensor channel_affine(const at::Tensor& x, const at::Tensor& scale,
                                        const at::Tensor& shift, bool silu, bool overwrite = false);

/// repeat_edges(channel_affine(x, ...), counts) of a clip x [B, C, T, H, W]: `counts` of its last
/// three dims; behind the frames of `before`, which have edges, where that is defined.
[[nodiscard]] at::Tensor channel_affine_with_edges(
    const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, bool silu,
    const std::vector<std::array<int64_t, 2>>& counts, const at::Tensor& before = {});

/// [B, C]: what GroupNorm multiplies by, and what it adds then.
struct GroupAffine {
  at::Tensor scale;
  at::Tensor shift;
};

/// Of sums fp64 [2, B, groups] over x and its squares, each over so many elements, as
/// kernels::group_affine says. weight, bias: [C]. type: of the result, fp32 or fp64.
[[nodiscard]] GroupAffine group_affine(const at::Tensor& sums, const at::Tensor& weight,
                                       const at::Tensor& bias, int64_t elements, double epsilon,
                                       at::ScalarType type);

/// Whether what is here of tensors like x, and repeat_places_with_edges(), takes no memory but for
/// its result now, where channels are a multiple of 8: kernels compute it.
[[nodiscard]] bool norms_in_one_pass(const at::Tensor& like);

/// x / max(|x|, 1e-12) * sqrt(C) * weight, |x| over the channels of a place of x [B, C,
/// spatial...], then silu or nothing, in at least fp32. weight: C elements. Returns x's type.
[[nodiscard]] at::Tensor channel_rms(const at::Tensor& x, const at::Tensor& weight, bool silu);

/// Such of clips [B, C, T, H, W], one behind the other, behind so many frames of zeros.
[[nodiscard]] at::Tensor channel_rms_joined(const std::vector<at::Tensor>& clips,
                                            const at::Tensor& weight, bool silu, int64_t zeros);

}  // namespace kinora::ops
