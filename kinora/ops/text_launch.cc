#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/text_launch.h"

#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/ragged_attention.h"

namespace kinora::ops::cuda {

void gated_activation(const kernels::GatedActivation& call) {
  KINORA_CUDA_CHECK(kernels::cuda::gated_activation(call, c10::cuda::getCurrentCUDAStream()));
}

bool ragged_attention_supported(const kernels::RaggedAttention& call) {
  return kernels::cuda::ragged_attention_supported(call);
}

void ragged_attention(const kernels::RaggedAttention& call) {
  KINORA_CUDA_CHECK(kernels::cuda::ragged_attention(call, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
