#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/channel_norm.h"

/// Launchers of kernels/channel_norm.h (rules of this folder: cuda/random.h). All pointers are
/// device memory, `in` and `out` on 16 bytes.
namespace kinora::kernels::cuda {

/// Whether the kernels take so many channels: whole vectors of 16 bytes.
[[nodiscard]] bool channel_norm_takes(int64_t channels, DType type);

/// Bytes of channel_moments' scratch.
[[nodiscard]] size_t channel_moments_workspace_bytes(int64_t batch, int64_t places,
                                                     int64_t channels, DType type);

/// kernels::channel_moments on the device: fp32 within about a thousand places, then fp64, in an
/// order that depends on the sizes alone. `workspace` may be used again by the next call on the
/// same stream.
[[nodiscard]] cudaError_t channel_moments(const ChannelMoments& call, void* workspace,
                                          cudaStream_t stream);

/// kernels::channel_affine on the device; with edges of at most 2^31 - 1 places of the result.
[[nodiscard]] cudaError_t channel_affine(const ChannelAffine& call, cudaStream_t stream);

/// kernels::channel_repeat on the device, of at most 2^31 - 1 places of an image of the result.
[[nodiscard]] cudaError_t channel_repeat(const ChannelRepeat& call, cudaStream_t stream);

/// kernels::channel_phases on the device, of at most 2^31 - 1 places of a clip of the result.
[[nodiscard]] cudaError_t channel_phases(const ChannelPhases& call, cudaStream_t stream);

/// kernels::group_affine on the device.
[[nodiscard]] cudaError_t group_affine(const GroupAffine& call, cudaStream_t stream);

/// Whether channel_rms takes so many channels: whole vectors of 16 bytes, at most 128 of them.
[[nodiscard]] bool channel_rms_takes(int64_t channels, DType type);

/// kernels::channel_rms on the device, sums in fp32.
[[nodiscard]] cudaError_t channel_rms(const ChannelRms& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
