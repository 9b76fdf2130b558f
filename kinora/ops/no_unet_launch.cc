#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/unet_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void no_kernels() {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace

void gated_gelu_forward(const kernels::GatedGeluForward& /*call*/) {
  no_kernels();
}

void gated_gelu_backward(const kernels::GatedGeluBackward& /*call*/) {
  no_kernels();
}

void residual_sum(const kernels::ResidualSum& /*call*/) {
  no_kernels();
}

at::Tensor sums_of_columns(const at::Tensor& /*in*/) {
  no_kernels();
}

}  // namespace kinora::ops::cuda
