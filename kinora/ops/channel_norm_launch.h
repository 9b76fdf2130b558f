#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kinora/kernels/channel_norm.h"

/// The launchers of kernels/cuda/channel_norm.h on tensors and torch's current stream, for
/// channel_norm.cc, convolution.cc and edges.cc only. no_channel_norm_launch.cc in CPU-only builds.
namespace kinora::ops::cuda {

/// What kernels that look up places take of an image or clip of the result.
inline constexpr int64_t kMostPlaces = std::numeric_limits<int32_t>::max();

/// A clip [B, C, T, H, W] whose edges come again, `counts` of T, H and W.
[[nodiscard]] inline kernels::ChannelEdges edges_of(
    const at::Tensor& clip, const std::vector<std::array<int64_t, 2>>& counts) {
  kernels::ChannelEdges edges;
  for (size_t d = 0; d < counts.size(); ++d) {
    edges.sizes[d] = clip.size(static_cast<int64_t>(d) + 2);
    edges.before[d] = counts[d][0];
    edges.after[d] = counts[d][1];
  }
  return edges;
}

/// The clip's sizes then.
[[nodiscard]] inline std::vector<int64_t> sizes_with(const kernels::ChannelEdges& edges,
                                                     const at::Tensor& clip) {
  return {clip.size(0), clip.size(1), edges.size(0), edges.size(1), edges.size(2)};
}

/// Whether there is a kernel for x, [B, C, spatial...] with channels side by side.
[[nodiscard]] bool channel_norm_takes(const at::Tensor& x);

/// @param out  fp64 [2, B, C], contiguous.
void channel_moments(const at::Tensor& x, const at::Tensor& out);

/// @param scale, shift  fp32 [B, C], contiguous.
/// @param out           laid out as x.
/// @param edges         with which out is larger than x
void channel_affine(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                    bool silu, const at::Tensor& out, const kernels::ChannelEdges& edges = {});

/// @param out  of edges' sizes, laid out as x, [B, C, T, H, W].
void channel_repeat(const at::Tensor& x, const kernels::ChannelEdges& edges, const at::Tensor& out);

/// @param call       its frames, rows, columns, times and left_out
/// @param in, out    channels side by side
/// @param bias       of their type; undefined: none
void channel_phases(kernels::ChannelPhases call, const at::Tensor& in, const at::Tensor& bias,
                    const at::Tensor& out);

/// Whether there is a kernel for x, [B, C, spatial...] with channels side by side.
[[nodiscard]] bool channel_rms_takes(const at::Tensor& x);

/// What a norm over channels does with them.
struct ChannelRmsOptions {
  float factor = 1.0F;
  float least = 0.0F;
  bool silu = false;
};

/// @param weight  fp32 [C], contiguous.
/// @param out     laid out as x, or so many frames of a longer clip that is.
void channel_rms(const at::Tensor& x, const at::Tensor& weight, const ChannelRmsOptions& options,
                 const at::Tensor& out);

/// Whether there is a kernel for them.
[[nodiscard]] bool group_affine_takes(const at::Tensor& sums, const at::Tensor& weight,
                                      const at::Tensor& bias);

/// @param sums         fp64 [2, B, groups], contiguous.
/// @param weight, bias  [C] of one type.
/// @param scale, shift  fp32 [B, C], contiguous.
void group_affine(const at::Tensor& sums, const at::Tensor& weight, const at::Tensor& bias,
                  int64_t elements, double epsilon, const at::Tensor& scale,
                  const at::Tensor& shift);

}  // namespace kinora::ops::cuda
