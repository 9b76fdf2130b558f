#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/cuda_launch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/kernels/cuda/optimizer.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::ops::cuda {
namespace {

kernels::StepControl* device_control(const at::Tensor& control) {
  return reinterpret_cast<kernels::StepControl*>(control.data_ptr<uint8_t>());
}

}  // namespace

bool available() {
  return kernels::cuda::has_cuda_kernels();
}

void random_fill(const at::Tensor& out, int64_t rows, const at::Tensor& sample_index,
                 const RandomStream& stream, int64_t first_element,
                 kernels::Distribution distribution, float scale) {
  const c10::cuda::CUDAGuard guard(out.device());
  const int64_t row_size = rows == 0 ? 0 : out.numel() / rows;
  KINORA_CUDA_CHECK(kernels::cuda::random_fill(
      out.data_ptr<float>(), rows, row_size,
      sample_index.defined() ? sample_index.const_data_ptr<int64_t>() : nullptr, stream,
      static_cast<uint64_t>(first_element), distribution, scale,
      c10::cuda::getCurrentCUDAStream()));
}

void add_sum_squares(const at::Tensor& grad, const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(grad.device());
  // Handed back to the caching allocator at once: later work of this stream comes after ours.
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(kernels::cuda::sum_squares_workspace_bytes())},
                at::TensorOptions(at::kByte).device(grad.device()));
  KINORA_CUDA_CHECK(kernels::cuda::sum_squares(grad.const_data_ptr<float>(), grad.numel(),
                                               workspace.data_ptr(), device_control(control),
                                               c10::cuda::getCurrentCUDAStream()));
}

void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::prepare_update(device_control(control), policy,
                                                  c10::cuda::getCurrentCUDAStream()));
}

void adamw_update(const kernels::AdamwBuffers& buffers, const at::Tensor& like,
                  const kernels::AdamwParameters& parameters, const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(like.device());
  KINORA_CUDA_CHECK(kernels::cuda::adamw_update(buffers, parameters, device_control(control),
                                                like.numel(), c10::cuda::getCurrentCUDAStream()));
}

void round_to(const at::Tensor& in, DType type, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(in.device());
  KINORA_CUDA_CHECK(kernels::cuda::cast(in.const_data_ptr<float>(), in.numel(), type,
                                        out.data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
