#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/channel_norm_launch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "kinora/core/cuda.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/cuda/channel_norm.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops::cuda {
namespace {

constexpr uintptr_t kAlignment = 16;
constexpr int64_t kMaxBatch = 32767;  // of the kernels' grids

int64_t places_of(const at::Tensor& x) {
  return x.numel() / (x.size(0) * x.size(1));
}

}  // namespace

bool channel_norm_takes(const at::Tensor& x) {
  const auto type = x.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  return available() && is_known && x.size(0) <= kMaxBatch &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0 &&
         kernels::cuda::channel_norm_takes(x.size(1), device::dtype_of(type));
}

void channel_moments(const at::Tensor& x, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto bytes = static_cast<int64_t>(kernels::cuda::channel_moments_workspace_bytes(
      x.size(0), places_of(x), x.size(1), device::dtype_of(x.scalar_type())));
  const at::Tensor workspace = at::empty({bytes}, x.options().dtype(at::kByte));
  KINORA_CUDA_CHECK(kernels::cuda::channel_moments({.batch = x.size(0),
                                                    .places = places_of(x),
                                                    .channels = x.size(1),
                                                    .type = device::dtype_of(x.scalar_type()),
                                                    .in = x.const_data_ptr(),
                                                    .out = out.data_ptr<double>()},
                                                   workspace.data_ptr(),
                                                   c10::cuda::getCurrentCUDAStream()));
}

void channel_affine(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                    bool silu, const at::Tensor& out, const kernels::ChannelEdges& edges) {
  const c10::cuda::CUDAGuard guard(x.device());
  KINORA_CUDA_CHECK(kernels::cuda::channel_affine({.batch = x.size(0),
                                                   .places = places_of(x),
                                                   .channels = x.size(1),
                                                   .type = device::dtype_of(x.scalar_type()),
                                                   .in = x.const_data_ptr(),
                                                   .scale = scale.const_data_ptr<float>(),
                                                   .shift = shift.const_data_ptr<float>(),
                                                   .silu = silu,
                                                   .out = out.data_ptr(),
                                                   .edges = edges},
                                                  c10::cuda::getCurrentCUDAStream()));
}

void channel_repeat(const at::Tensor& x, const kernels::ChannelEdges& edges,
                    const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(x.device());
  KINORA_CUDA_CHECK(kernels::cuda::channel_repeat({.batch = x.size(0),
                                                   .channels = x.size(1),
                                                   .type = device::dtype_of(x.scalar_type()),
                                                   .in = x.const_data_ptr(),
                                                   .out = out.data_ptr(),
                                                   .edges = edges},
                                                  c10::cuda::getCurrentCUDAStream()));
}

void channel_phases(kernels::ChannelPhases call, const at::Tensor& in, const at::Tensor& bias,
                    const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(in.device());
  call.batch = out.size(0);
  call.channels = out.size(1);
  call.type = device::dtype_of(in.scalar_type());
  call.in = in.const_data_ptr();
  call.bias = bias.defined() ? bias.const_data_ptr() : nullptr;
  call.out = out.data_ptr();
  KINORA_CUDA_CHECK(kernels::cuda::channel_phases(call, c10::cuda::getCurrentCUDAStream()));
}

bool channel_rms_takes(const at::Tensor& x) {
  return x.is_cuda() && channel_norm_takes(x) &&
         kernels::cuda::channel_rms_takes(x.size(1), device::dtype_of(x.scalar_type()));
}

void channel_rms(const at::Tensor& x, const at::Tensor& weight, const ChannelRmsOptions& options,
                 const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(x.device());
  KINORA_CUDA_CHECK(kernels::cuda::channel_rms(
      {.batch = x.size(0),
       .places = places_of(x),
       .channels = x.size(1),
       .type = device::dtype_of(x.scalar_type()),
       .in = x.const_data_ptr(),
       .weight = weight.const_data_ptr<float>(),
       .factor = options.factor,
       .least = options.least,
       .silu = options.silu,
       .out = out.data_ptr(),
       .out_places = x.size(0) > 1 ? out.stride(0) / x.size(1) : places_of(x)},
      c10::cuda::getCurrentCUDAStream()));
}

bool group_affine_takes(const at::Tensor& sums, const at::Tensor& weight, const at::Tensor& bias) {
  const auto type = weight.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  return available() && is_known && bias.scalar_type() == type && sums.is_cuda() &&
         weight.is_cuda() && bias.is_cuda() && sums.is_contiguous() && weight.is_contiguous() &&
         bias.is_contiguous();
}

void group_affine(const at::Tensor& sums, const at::Tensor& weight, const at::Tensor& bias,
                  int64_t elements, double epsilon, const at::Tensor& scale,
                  const at::Tensor& shift) {
  const c10::cuda::CUDAGuard guard(sums.device());
  KINORA_CUDA_CHECK(kernels::cuda::group_affine({.batch = sums.size(1),
                                                 .channels = weight.numel(),
                                                 .groups = sums.size(2),
                                                 .elements = elements,
                                                 .epsilon = epsilon,
                                                 .type = device::dtype_of(weight.scalar_type()),
                                                 .weight = weight.const_data_ptr(),
                                                 .bias = bias.const_data_ptr(),
                                                 .sums = sums.const_data_ptr<double>(),
                                                 .scale = scale.data_ptr<float>(),
                                                 .shift = shift.data_ptr<float>()},
                                                c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
