#include "kinora/ops/bucket_hook.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries the action through the context's IValue map.
struct Action : torch::CustomClassHolder {
  explicit Action(std::function<void()> run) : run(std::move(run)) {}
  std::function<void()> run;
};

struct OnBackward : torch::autograd::Function<OnBackward> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Action>& action) {
    context->saved_data["action"] = c10::IValue::make_capsule(action);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["action"].toCapsule();
    static_cast<const Action*>(holder.get())->run();
    return {incoming[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor wanting_gradient(const at::Tensor& x) {
  return x.requires_grad() ? x : x.detach().set_requires_grad(true);
}

at::Tensor on_backward(const at::Tensor& x, std::function<void()> action) {
  if (!at::GradMode::is_enabled()) {
    return x;
  }
  return OnBackward::apply(wanting_gradient(x), c10::make_intrusive<Action>(std::move(action)));
}

}  // namespace kinora::ops
