#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/group_norm_launch.h"

namespace kinora::ops::cuda {

bool group_norm_takes(const at::Tensor& /*x*/, int64_t /*groups*/) {
  return false;
}

void group_norm_forward(const at::Tensor& /*x*/, const at::Tensor& /*weight*/,
                        const at::Tensor& /*bias*/, const GroupNormOptions& /*options*/,
                        const at::Tensor& /*channel_bias*/, const at::Tensor& /*offset*/,
                        const at::Tensor& /*y*/, const GroupNormStatistics& /*statistics*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

void group_norm_backward(const at::Tensor& /*dy*/, const at::Tensor& /*x*/,
                         const GroupNormStatistics& /*statistics*/, bool /*silu*/,
                         const GroupNormGradients& /*gradients*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace kinora::ops::cuda
