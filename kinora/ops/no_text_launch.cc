#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/text_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void no_kernels() {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace

void gated_activation(const kernels::GatedActivation& /*call*/) {
  no_kernels();
}

bool ragged_attention_supported(const kernels::RaggedAttention& /*call*/) {
  return false;
}

void ragged_attention(const kernels::RaggedAttention& /*call*/) {
  no_kernels();
}

}  // namespace kinora::ops::cuda
