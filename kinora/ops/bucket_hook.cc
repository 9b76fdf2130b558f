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
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Action>& action,
                               at::TensorList streams) {
    context->saved_data["action"] = c10::IValue::make_capsule(action);
    variable_list results;
    for (const at::Tensor& stream : streams) {
      results.push_back(stream.view_as(stream));
    }
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["action"].toCapsule();
    static_cast<const Action*>(holder.get())->run();
    variable_list gradients = {at::Tensor()};  // the action has none
    gradients.insert(gradients.end(), incoming.begin(), incoming.end());
    return gradients;
  }
};

}  // namespace

at::Tensor wanting_gradient(const at::Tensor& x) {
  return x.requires_grad() ? x : x.detach().set_requires_grad(true);
}

std::vector<at::Tensor> on_backward(std::vector<at::Tensor> streams, std::function<void()> action) {
  if (!at::GradMode::is_enabled()) {
    return streams;
  }
  streams.front() = wanting_gradient(streams.front());
  return OnBackward::apply(c10::make_intrusive<Action>(std::move(action)), at::TensorList(streams));
}

at::Tensor on_backward(const at::Tensor& x, std::function<void()> action) {
  return on_backward(std::vector<at::Tensor>{x}, std::move(action)).front();
}

}  // namespace kinora::ops
