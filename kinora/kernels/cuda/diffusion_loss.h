#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/diffusion_loss.h"

/// Launchers of kernels/diffusion_loss.h (rules of this folder: cuda/random.h). All pointers are
/// device memory. Arrays of 16-byte alignment whose sample_size and prediction_size are multiples
/// of 8 are fastest; anything else works.
namespace kinora::kernels::cuda {

/// Bytes of diffusion_loss' scratch.
[[nodiscard]] size_t diffusion_loss_workspace_bytes(int64_t batch, int64_t sample_size);

/// kernels::diffusion_loss on the device, in fp32. The order of additions depends on the sizes
/// alone. `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t diffusion_loss(const DiffusionLoss& call, void* workspace,
                                         cudaStream_t stream);

}  // namespace kinora::kernels::cuda
