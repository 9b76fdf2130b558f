#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void no_kernels() {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace

bool available() {
  return false;
}

void random_fill(const at::Tensor& /*out*/, int64_t /*rows*/, const at::Tensor& /*sample_index*/,
                 const RandomStream& /*stream*/, int64_t /*first_element*/,
                 kernels::Distribution /*distribution*/, float /*scale*/) {
  no_kernels();
}

void add_sum_squares(const at::Tensor& /*grad*/, const at::Tensor& /*control*/) {
  no_kernels();
}

void prepare_update(const at::Tensor& /*control*/, const kernels::UpdatePolicy& /*policy*/) {
  no_kernels();
}

void adamw_update(const kernels::AdamwBuffers& /*buffers*/, const at::Tensor& /*like*/,
                  const kernels::AdamwParameters& /*parameters*/, const at::Tensor& /*control*/) {
  no_kernels();
}

void round_to(const at::Tensor& /*in*/, DType /*type*/, const at::Tensor& /*out*/) {
  no_kernels();
}

}  // namespace kinora::ops::cuda
