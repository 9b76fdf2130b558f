#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/channel_norm_launch.h"

namespace kinora::ops::cuda {

bool channel_norm_takes(const at::Tensor& /*x*/) {
  return false;
}

void channel_moments(const at::Tensor& /*x*/, const at::Tensor& /*out*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

void channel_affine(const at::Tensor& /*x*/, const at::Tensor& /*scale*/,
                    const at::Tensor& /*shift*/, bool /*silu*/, const at::Tensor& /*out*/,
                    const kernels::ChannelEdges& /*edges*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

void channel_repeat(const at::Tensor& /*x*/, const kernels::ChannelEdges& /*edges*/,
                    const at::Tensor& /*out*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

void channel_phases(kernels::ChannelPhases /*call*/, const at::Tensor& /*in*/,
                    const at::Tensor& /*bias*/, const at::Tensor& /*out*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

bool channel_rms_takes(const at::Tensor& /*x*/) {
  return false;
}

void channel_rms(const at::Tensor& /*x*/, const at::Tensor& /*weight*/,
                 const ChannelRmsOptions& /*options*/, const at::Tensor& /*out*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

bool group_affine_takes(const at::Tensor& /*sums*/, const at::Tensor& /*weight*/,
                        const at::Tensor& /*bias*/) {
  return false;
}

void group_affine(const at::Tensor& /*sums*/, const at::Tensor& /*weight*/,
                  const at::Tensor& /*bias*/, int64_t /*elements*/, double /*epsilon*/,
                  const at::Tensor& /*scale*/, const at::Tensor& /*shift*/) {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace kinora::ops::cuda
