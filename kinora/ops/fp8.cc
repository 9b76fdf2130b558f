#include "kinora/ops/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::ops {
namespace {

constexpr int64_t kAlignment = 16;  // of the sizes of fp8 products

kernels::ScaleUpdate scale_update(const at::Tensor& amax, const at::Tensor& history, int64_t window,
                                  const at::Tensor& largest, const at::Tensor& scale,
                                  const at::Tensor& inverse) {
  kernels::ScaleUpdate update;
  update.count = amax.numel();
  update.amax = amax.data_ptr<float>();
  update.history = window > 0 ? history.data_ptr<float>() : nullptr;
  update.window = window;
  update.largest = largest.const_data_ptr<float>();
  update.scale = scale.data_ptr<float>();
  update.inverse_scale = inverse.data_ptr<float>();
  return update;
}

}  // namespace

bool Fp8::possible(at::Device device) {
  if (!cuda::has_block_kernels(device, at::kBFloat16)) {
    return false;
  }
  const CudaDevice info = cuda_device(std::max<int>(device.index(), 0));
  return 10 * info.major + info.minor >= 89;
}

Fp8::Fp8(int64_t num_linears, at::Device device) : num_linears_(num_linears), device_(device) {
  KINORA_CHECK(possible(device), kConfig,
               "[fp8] train.fp8 needs a GPU of compute capability 8.9 or more (Ada, Hopper or "
               "newer) and a build with nvcc. Hint: train.fp8=false computes in train.precision");
  const auto options = at::device(device).dtype(at::kFloat);
  amax_ = at::zeros({2 * num_linears * kStride}, options);
  history_ = at::zeros({2 * num_linears * kStride, kFp8History}, options);
  scale_ = at::ones({2 * num_linears * kStride}, options);
  inverse_ = at::ones({2 * num_linears * kStride}, options);
  largest_ = at::full({num_linears, 2, kStride}, kernels::kLargestE4M3, options);
  largest_.select(1, kGradient).fill_(kernels::kLargestE5M2);
  weight_amax_ = at::zeros({num_linears * kStride}, options);
  weight_scale_ = at::ones({num_linears * kStride}, options);
  weight_inverse_ = at::ones({num_linears * kStride}, options);
  weight_largest_ = at::full({num_linears * kStride}, kernels::kLargestE4M3, options);
}

void Fp8::begin_step(const std::vector<LinearWeights>& linears) {
  if (num_steps_ > 0) {
    cuda::update_scales(scale_update(amax_, history_, kFp8History, largest_, scale_, inverse_));
  }
  if (weights_.empty()) {
    for (const LinearWeights& linear : linears) {
      const auto bytes = linear.weight.options().dtype(at::kByte).requires_grad(false);
      weights_.push_back(at::empty(linear.weight.sizes(), bytes));
      transposed_.push_back(at::empty({linear.weight.size(1), linear.weight.size(0)}, bytes));
    }
  }
  for (const LinearWeights& linear : linears) {
    cuda::largest_magnitude(linear.weight,
                            weight_amax_.data_ptr<float>() + kStride * linear.number);
  }
  cuda::update_scales(
      scale_update(weight_amax_, {}, 0, weight_largest_, weight_scale_, weight_inverse_));
  for (const LinearWeights& linear : linears) {
    const auto i = static_cast<size_t>(linear.number);
    cuda::quantise(linear.weight,
                   {.type = DType::kF8E4M3,
                    .data = weights_[i].data_ptr(),
                    .transposed = transposed_[i].data_ptr(),
                    .scale = weight_scale_.const_data_ptr<float>() + kStride * linear.number});
  }
  ++num_steps_;
}

at::Tensor Fp8::of_linears(const at::Tensor& numbers) const {
  std::vector<int64_t> shape = numbers.sizes().vec();
  shape[0] = kStride;
  shape.insert(shape.begin(), {num_linears_, 2});
  return numbers.view(shape).select(2, 0);
}

std::optional<Fp8State> Fp8::state() const {
  if (num_steps_ == 0) {
    return std::nullopt;
  }
  const auto on_host = [this](const at::Tensor& numbers) {
    return of_linears(numbers).to(at::kCPU).contiguous();
  };
  return Fp8State{on_host(amax_), on_host(history_), on_host(scale_)};
}

void Fp8::restore(const Fp8State& state) {
  const std::string fault = fault_of(state);
  KINORA_CHECK(fault.empty(), kIo, "[fp8] ", fault);
  KINORA_CHECK(state.amax.size(0) == num_linears_, kIo, "[fp8] the scales must be of ",
               num_linears_, " linears, got ", state.amax.size(0));
  of_linears(amax_).copy_(state.amax);
  of_linears(history_).copy_(state.history);
  of_linears(scale_).copy_(state.scale);
  num_steps_ = 1;  // begin_step() of the next one makes its scales of these
}

bool Fp8::covers(int64_t number, int64_t rows) const {
  return number >= 0 && number < num_linears_ && rows % kAlignment == 0;
}

const float* Fp8::scale(int64_t number, Role role) const {
  return scale_.const_data_ptr<float>() + kStride * (2 * number + role);
}
const float* Fp8::inverse_scale(int64_t number, Role role) const {
  return inverse_.const_data_ptr<float>() + kStride * (2 * number + role);
}
float* Fp8::amax(int64_t number, Role role) const {
  return amax_.data_ptr<float>() + kStride * (2 * number + role);
}

Fp8::Weight Fp8::weight(int64_t number) const {
  const auto i = static_cast<size_t>(number);
  return {weights_[i], transposed_[i], weight_inverse_.const_data_ptr<float>() + kStride * number};
}

}  // namespace kinora::ops
