#include "kinora/ops/unet_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <vector>

#include "kinora/device/host_bytes.h"
#include "kinora/ops/channels_last.h"
#include "kinora/ops/cuda_launch.h"
#include "kinora/ops/unet_launch.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool takes_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cuda() && x.numel() > 0 && cuda::available() &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

struct GatedGelu : torch::autograd::Function<GatedGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& uv) {
    context->save_for_backward({uv});
    std::vector<int64_t> sizes = uv.sizes().vec();
    sizes.back() /= 2;
    at::Tensor g = at::empty(sizes, uv.options());
    cuda::gated_gelu_forward({.rows = uv.numel() / uv.size(-1),
                              .width = sizes.back(),
                              .type = device::dtype_of(uv.scalar_type()),
                              .uv = uv.const_data_ptr(),
                              .g = g.data_ptr()});
    return g;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    return {gated_gelu_backward(incoming.front(), context->get_saved_variables().front())};
  }
};

std::vector<int64_t> by_channel(const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return shape;
}

/// [C], the sums of x [B, C, spatial...] over all else.
at::Tensor sums_by_channel(const at::Tensor& x) {
  if (takes_kernel(x) && is_channels_last(x)) {
    return cuda::sums_of_columns(x.movedim(1, -1).view({-1, x.size(1)}));
  }
  std::vector<int64_t> others(static_cast<size_t>(x.dim()) - 1);
  std::iota(others.begin() + 1, others.end(), 2);
  return x.sum(others);
}

struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias) {
    add_into(x, x, {}, bias);
    context->mark_dirty({x});
    return x;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const at::Tensor& dout = incoming.front();
    return {dout, context->needs_input_grad(1) ? sums_by_channel(dout) : at::Tensor()};
  }
};

struct ResidualSum : torch::autograd::Function<ResidualSum> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& x, const at::Tensor& y,
                            const at::Tensor& bias) {
    at::Tensor out = at::empty_like(x);
    cuda::residual_sum({.rows = x.numel() / x.size(1),
                        .width = x.size(1),
                        .type = device::dtype_of(x.scalar_type()),
                        .x = x.const_data_ptr(),
                        .y = y.const_data_ptr(),
                        .bias = bias.const_data_ptr(),
                        .out = out.data_ptr()});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const at::Tensor& dout = incoming.front();
    at::Tensor dbias;
    if (context->needs_input_grad(2)) {
      dbias = sums_by_channel(dout.contiguous(channels_last(dout)));
    }
    return {dout, dout, dbias};
  }
};

}  // namespace

at::Tensor gated_gelu(const at::Tensor& uv) {
  if (takes_kernel(uv)) {
    return GatedGelu::apply(uv.contiguous());
  }
  const std::vector<at::Tensor> parts = uv.chunk(2, -1);
  return parts[0] * at::gelu(parts[1]);
}

at::Tensor gated_gelu_backward(const at::Tensor& dg, const at::Tensor& uv) {
  if (!takes_kernel(uv)) {
    const std::vector<at::Tensor> parts = uv.chunk(2, -1);
    return at::cat({dg * at::gelu(parts[1]), at::gelu_backward(dg * parts[0], parts[1])}, -1);
  }
  const at::Tensor contiguous = dg.contiguous();
  at::Tensor duv = at::empty_like(uv);
  cuda::gated_gelu_backward({.rows = uv.numel() / uv.size(-1),
                             .width = uv.size(-1) / 2,
                             .type = device::dtype_of(uv.scalar_type()),
                             .uv = uv.const_data_ptr(),
                             .dg = contiguous.const_data_ptr(),
                             .duv = duv.data_ptr()});
  return duv;
}

at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& y, const at::Tensor& bias) {
  if (takes_kernel(x) && is_channels_last(x) && is_channels_last(y)) {
    return ResidualSum::apply(x, y, bias);
  }
  return x + (y + bias.view(by_channel(x)));
}

at::Tensor add_bias(const at::Tensor& x, const at::Tensor& bias) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || bias.requires_grad())) {
    return AddBias::apply(x, bias);
  }
  add_into(x, x, {}, bias);
  return x;
}

void add_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
              const at::Tensor& bias) {
  const auto all_last = [](const auto&... tensors) { return (is_channels_last(tensors) && ...); };
  if (!takes_kernel(x) || !all_last(out, x) || (y.defined() && !is_channels_last(y))) {
    const at::Tensor more = bias.view(by_channel(x));
    at::Tensor result = out;
    at::add_out(result, x, y.defined() ? y + more : more);
    return;
  }
  cuda::residual_sum({.rows = x.numel() / x.size(1),
                      .width = x.size(1),
                      .type = device::dtype_of(x.scalar_type()),
                      .x = x.const_data_ptr(),
                      .y = y.defined() ? y.const_data_ptr() : nullptr,
                      .bias = bias.const_data_ptr(),
                      .out = out.data_ptr()});
}

}  // namespace kinora::ops
