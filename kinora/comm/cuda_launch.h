#pragma once

#include <c10/core/Device.h>

#include "kinora/kernels/fp8.h"
#include "kinora/kernels/fp8_blocks.h"

/// The launchers of kernels/cuda/ on torch's current stream of `device`, for the files of this room
/// only. cuda_launch.cc in builds with GPU support, no_cuda_launch.cc in CPU-only ones.
namespace kinora::comm::cuda {

void block_quantise(const kernels::BlockQuantise& call, at::Device device);

void block_sums(const kernels::BlockSums& call, at::Device device);

}  // namespace kinora::comm::cuda
