#include "kinora/ops/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "kinora/ops/bucket_hook.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Body = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Carries the function through the context's IValue map.
struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(Body body) : body(std::move(body)) {}
  Body body;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<BodyHolder>& holder,
                            at::TensorList inputs) {
    context->saved_data["body"] = c10::IValue::make_capsule(holder);
    context->save_for_backward(inputs.vec());
    at::NoGradGuard no_grad;
    return holder->body(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["body"].toCapsule();
    const Body& body = static_cast<BodyHolder*>(holder.get())->body;

    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    at::Tensor output;
    {
      at::AutoGradMode with_grad(true);
      output = body(inputs);
    }
    torch::autograd::backward({output}, {incoming[0]});

    variable_list gradients = {at::Tensor()};  // the function itself has none
    for (const at::Tensor& input : inputs) {
      gradients.push_back(input.grad());
    }
    return gradients;
  }
};

}  // namespace

at::Tensor recompute(Body function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return function(inputs);
  }
  // The function may hold parameters that want gradients, whatever its inputs are.
  std::vector<at::Tensor> wanting = inputs;
  wanting.front() = wanting_gradient(wanting.front());
  return RecomputeFunction::apply(c10::make_intrusive<BodyHolder>(std::move(function)),
                                  at::TensorList(wanting));
}

}  // namespace kinora::ops
