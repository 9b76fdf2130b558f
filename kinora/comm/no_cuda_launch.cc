#include "kinora/comm/cuda_launch.h"
#include "kinora/core/error.h"

namespace kinora::comm::cuda {
namespace {

[[noreturn]] void no_kernels() {
  KINORA_UNREACHABLE("[comm] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace

void block_quantise(const kernels::BlockQuantise& /*call*/, at::Device /*device*/) {
  no_kernels();
}

void block_sums(const kernels::BlockSums& /*call*/, at::Device /*device*/) {
  no_kernels();
}

}  // namespace kinora::comm::cuda
