#include "kinora/ops/parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/add.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool overwrites = false;

struct WithGradient : torch::autograd::Function<WithGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value,
                            const at::Tensor& gradient) {
    context->saved_data["gradient"] = gradient;
    context->saved_data["overwrites"] = overwrites;
    return value.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    at::Tensor gradient = context->saved_data["gradient"].toTensor();
    if (incoming[0].defined() && context->saved_data["overwrites"].toBool()) {
      gradient.copy_(incoming[0]);
    } else if (incoming[0].defined()) {
      gradient.add_(incoming[0]);
    }
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void zero_gradients(const std::vector<at::Tensor>& gradients) {
  if (!gradients.empty()) {
    const at::NoGradGuard no_grad;
    at::_foreach_zero_(gradients);
  }
}

OverwriteGradients::OverwriteGradients(bool on) : before_(std::exchange(overwrites, on)) {}

OverwriteGradients::~OverwriteGradients() {
  overwrites = before_;
}

bool OverwriteGradients::is_on() {
  return overwrites;
}

at::Tensor with_gradient(const at::Tensor& value, const at::Tensor& gradient) {
  if (!gradient.defined() || !at::GradMode::is_enabled()) {
    return value;
  }
  KINORA_CHECK(value.sizes() == gradient.sizes(), kInternal,
               "[with_gradient] gradient must have shape ", value.sizes(), ", got ",
               gradient.sizes());
  return WithGradient::apply(value, gradient);
}

}  // namespace kinora::ops
