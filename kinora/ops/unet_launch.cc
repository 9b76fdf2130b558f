#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/unet_launch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "kinora/core/cuda.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/gated_gelu.h"
#include "kinora/kernels/cuda/residual_sum.h"

namespace kinora::ops::cuda {
namespace {

cudaStream_t stream() {
  return c10::cuda::getCurrentCUDAStream();
}

}  // namespace

void gated_gelu_forward(const kernels::GatedGeluForward& call) {
  KINORA_CUDA_CHECK(kernels::cuda::gated_gelu_forward(call, stream()));
}

void gated_gelu_backward(const kernels::GatedGeluBackward& call) {
  KINORA_CUDA_CHECK(kernels::cuda::gated_gelu_backward(call, stream()));
}

void residual_sum(const kernels::ResidualSum& call) {
  KINORA_CUDA_CHECK(kernels::cuda::residual_sum(call, stream()));
}

at::Tensor sums_of_columns(const at::Tensor& in) {
  at::Tensor out = at::zeros({in.size(1)}, in.options().dtype(at::kFloat));
  const auto bytes =
      static_cast<int64_t>(kernels::cuda::column_sums_workspace_bytes(in.size(0), in.size(1)));
  const at::Tensor workspace = at::empty({bytes}, in.options().dtype(at::kByte));
  KINORA_CUDA_CHECK(kernels::cuda::column_sums({.rows = in.size(0),
                                                .width = in.size(1),
                                                .row_stride = in.size(1),
                                                .type = device::dtype_of(in.scalar_type()),
                                                .in = in.const_data_ptr(),
                                                .out = out.data_ptr<float>()},
                                               workspace.data_ptr(), stream()));
  return out;
}

}  // namespace kinora::ops::cuda
