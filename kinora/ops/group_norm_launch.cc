#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/group_norm_launch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "kinora/core/cuda.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/cuda/group_norm.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops::cuda {
namespace {

kernels::GroupNormShape shape_of(const at::Tensor& x, int64_t groups) {
  return {.batch = x.size(0),
          .places = x.numel() / (x.size(0) * x.size(1)),
          .channels = x.size(1),
          .groups = groups,
          .type = device::dtype_of(x.scalar_type())};
}

kernels::ChannelValues values_of(const at::Tensor& vector) {
  if (!vector.defined()) {
    return {};
  }
  return {.data = vector.const_data_ptr(), .type = device::dtype_of(vector.scalar_type())};
}

kernels::ChannelGradient gradient_of(const at::Tensor& vector) {
  if (!vector.defined()) {
    return {};
  }
  return {.data = vector.data_ptr(), .type = device::dtype_of(vector.scalar_type())};
}

kernels::GroupNormStatistics statistics_of(const GroupNormStatistics& statistics) {
  if (!statistics.factors.defined()) {
    return {};
  }
  return {.factors = statistics.factors.data_ptr<float>(),
          .rstd = statistics.rstd.data_ptr<float>()};
}

at::Tensor workspace_of(size_t bytes, const at::Tensor& x) {
  return at::empty({static_cast<int64_t>(bytes)}, x.options().dtype(at::kByte));
}

}  // namespace

bool group_norm_takes(const at::Tensor& x, int64_t groups) {
  const auto type = x.scalar_type();
  return available() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
         kernels::cuda::group_norm_takes(shape_of(x, groups));
}

void group_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const GroupNormOptions& options, const at::Tensor& channel_bias,
                        const at::Tensor& offset, const at::Tensor& y,
                        const GroupNormStatistics& statistics) {
  const c10::cuda::CUDAGuard guard(x.device());
  const kernels::GroupNormForward call = {.shape = shape_of(x, options.groups),
                                          .epsilon = options.epsilon,
                                          .silu = options.silu,
                                          .x = x.const_data_ptr(),
                                          .weight = values_of(weight),
                                          .bias = values_of(bias),
                                          .channel_bias = values_of(channel_bias),
                                          .offset = values_of(offset),
                                          .y = y.data_ptr(),
                                          .statistics = statistics_of(statistics)};
  const at::Tensor workspace =
      workspace_of(kernels::cuda::group_norm_forward_workspace_bytes(call), x);
  KINORA_CUDA_CHECK(kernels::cuda::group_norm_forward(call, workspace.data_ptr(),
                                                      c10::cuda::getCurrentCUDAStream()));
}

void group_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                         const GroupNormStatistics& statistics, bool silu,
                         const GroupNormGradients& gradients) {
  const c10::cuda::CUDAGuard guard(x.device());
  const kernels::GroupNormBackward call = {
      .shape = shape_of(x, statistics.rstd.size(1)),
      .silu = silu,
      .dy = dy.const_data_ptr(),
      .x = x.const_data_ptr(),
      .statistics = statistics_of(statistics),
      .dx = gradients.x.defined() ? gradients.x.data_ptr() : nullptr,
      .dweight = gradient_of(gradients.weight),
      .dbias = gradient_of(gradients.bias),
      .dchannel_bias = gradient_of(gradients.channel_bias),
      .doffset = gradient_of(gradients.offset)};
  const at::Tensor workspace =
      workspace_of(kernels::cuda::group_norm_backward_workspace_bytes(call), x);
  KINORA_CUDA_CHECK(kernels::cuda::group_norm_backward(call, workspace.data_ptr(),
                                                       c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
