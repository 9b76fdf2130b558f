#include "kinora/ops/diffusion_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/block_launch.h"
#include "kinora/ops/diffusion_launch.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries all inputs but the prediction through the context's IValue map.
struct InputsHolder : torch::CustomClassHolder {
  explicit InputsHolder(DiffusionLossInputs inputs) : inputs(std::move(inputs)) {}
  DiffusionLossInputs inputs;
};

/// The inputs as the kernel takes them; tensors are contiguous.
kernels::DiffusionLoss call_of(const DiffusionLossInputs& inputs, const at::Tensor& prediction) {
  kernels::DiffusionLoss call;
  call.target = inputs.target;
  call.learned_variance = inputs.learned_variance;
  call.batch = prediction.size(0);
  call.sample_size = call.batch == 0 ? 0 : inputs.x0.numel() / call.batch;
  call.prediction_size = call.batch == 0 ? 0 : prediction.numel() / call.batch;
  call.type = device::dtype_of(prediction.scalar_type());
  call.prediction = prediction.const_data_ptr();
  call.noise = inputs.noise.const_data_ptr<float>();
  call.x0 = inputs.x0.const_data_ptr<float>();
  call.weights = inputs.weights.const_data_ptr<float>();
  if (inputs.table.defined()) {
    call.t = inputs.t.const_data_ptr<float>();
    call.table = inputs.table.const_data_ptr<float>();
    call.num_timesteps = inputs.table.size(0);
    call.bound_scale = inputs.bound_scale;
  }
  return call;
}

struct Loss : torch::autograd::Function<Loss> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<InputsHolder>& holder,
                               const at::Tensor& prediction) {
    context->saved_data["inputs"] = c10::IValue::make_capsule(holder);
    context->save_for_backward({prediction});
    const at::TensorOptions options = prediction.options().dtype(at::kFloat);
    const int64_t batch = prediction.size(0);
    variable_list out = {at::zeros({}, options), at::empty({batch}, options),
                         at::empty({batch}, options), at::empty({batch}, options)};
    kernels::DiffusionLoss call = call_of(holder->inputs, prediction);
    call.mean = out[0].data_ptr<float>();
    call.total = out[1].data_ptr<float>();
    call.mse = out[2].data_ptr<float>();
    call.vb = out[3].data_ptr<float>();
    cuda::diffusion_loss(call, prediction.get_device());
    context->mark_non_differentiable({out[1], out[2], out[3]});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["inputs"].toCapsule();
    const at::Tensor prediction = context->get_saved_variables()[0];
    at::Tensor gradient = at::empty_like(prediction);
    const at::Tensor scale = incoming[0].contiguous();
    kernels::DiffusionLoss call =
        call_of(static_cast<InputsHolder*>(holder.get())->inputs, prediction);
    call.d_prediction = gradient.data_ptr();
    call.grad_scale = scale.const_data_ptr<float>();
    cuda::diffusion_loss(call, prediction.get_device());
    return {at::Tensor(), gradient};
  }
};

bool is_float_on(const at::Tensor& tensor, at::Device device, at::IntArrayRef shape) {
  return tensor.device() == device && tensor.scalar_type() == at::kFloat && tensor.sizes() == shape;
}

}  // namespace

bool has_fused_loss(const DiffusionLossInputs& inputs) {
  const at::Device device = inputs.prediction.device();
  const at::ScalarType type = inputs.prediction.scalar_type();
  const at::IntArrayRef batch = inputs.prediction.sizes().slice(0, 1);
  return device::is_gpu(device) &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) &&
         cuda::has_block_kernels(device, type) &&
         is_float_on(inputs.noise, device, inputs.x0.sizes()) &&
         is_float_on(inputs.x0, device, inputs.noise.sizes()) &&
         is_float_on(inputs.weights, device, batch) &&
         (!inputs.table.defined() || (is_float_on(inputs.t, device, batch) &&
                                      is_float_on(inputs.table, device, inputs.table.sizes())));
}

FusedLoss fused_loss(const DiffusionLossInputs& inputs) {
  DiffusionLossInputs rest = inputs;
  rest.prediction.reset();
  rest.noise = rest.noise.contiguous();
  rest.x0 = rest.x0.contiguous();
  rest.weights = rest.weights.contiguous();
  if (rest.table.defined()) {
    rest.t = rest.t.contiguous();
    rest.table = rest.table.contiguous();
  }
  const bool learned_variance = rest.learned_variance;
  const variable_list out = Loss::apply(c10::make_intrusive<InputsHolder>(std::move(rest)),
                                        inputs.prediction.contiguous());
  return {out[0], out[1], out[2], learned_variance ? out[3] : at::Tensor()};
}

}  // namespace kinora::ops
