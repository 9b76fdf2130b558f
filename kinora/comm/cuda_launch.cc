#include "kinora/comm/cuda_launch.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/fp8_blocks.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::comm::cuda {
namespace {

void check_kernels() {
  KINORA_CHECK(kernels::cuda::has_cuda_kernels(), kCuda,
               "[fp8] communication in fp8 needs kernels of our own, which a build without nvcc "
               "does not have. Hint: communicate in the tensors' type");
}

}  // namespace

void block_quantise(const kernels::BlockQuantise& call, at::Device device) {
  check_kernels();
  const c10::cuda::CUDAGuard guard(device);
  KINORA_CUDA_CHECK(kernels::cuda::block_quantise(call, c10::cuda::getCurrentCUDAStream()));
}

void block_sums(const kernels::BlockSums& call, at::Device device) {
  check_kernels();
  const c10::cuda::CUDAGuard guard(device);
  KINORA_CUDA_CHECK(kernels::cuda::block_sums(call, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::comm::cuda
