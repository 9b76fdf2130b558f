#include "kinora/ops/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/parameter.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Body = std::function<variable_list(const variable_list&)>;

thread_local bool is_first_time = false;

class FirstTime {
 public:
  FirstTime() { is_first_time = true; }
  FirstTime(const FirstTime&) = delete;
  FirstTime& operator=(const FirstTime&) = delete;
  ~FirstTime() { is_first_time = before_; }

 private:
  bool before_ = is_first_time;
};

/// Carries the function through the context's IValue map.
struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(Body body) : body(std::move(body)) {}
  Body body;
  bool overwrites = OverwriteGradients::is_on();  // backward computes on another thread
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<BodyHolder>& holder,
                               at::TensorList inputs) {
    context->saved_data["body"] = c10::IValue::make_capsule(holder);
    context->save_for_backward(inputs.vec());
    const at::NoGradGuard no_grad;
    const FirstTime first_time;
    return holder->body(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["body"].toCapsule();
    const auto& kept = *static_cast<BodyHolder*>(holder.get());

    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    variable_list outputs;
    {
      const at::AutoGradMode with_grad(true);
      const OverwriteGradients as_in_forward(kept.overwrites);
      outputs = kept.body(inputs);
    }
    variable_list wanting;
    variable_list of_wanting;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad()) {  // not an input that went through as it was
        wanting.push_back(outputs[i]);
        of_wanting.push_back(incoming[i]);
      }
    }
    torch::autograd::backward(wanting, of_wanting);

    variable_list gradients = {at::Tensor()};  // the function itself has none
    for (const at::Tensor& input : inputs) {
      gradients.push_back(input.grad());
    }
    return gradients;
  }
};

}  // namespace

std::vector<at::Tensor> recompute(Body function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return function(inputs);
  }
  // The function may hold parameters that want gradients, whatever its inputs are.
  std::vector<at::Tensor> wanting = inputs;
  wanting.front() = wanting_gradient(wanting.front());
  return RecomputeFunction::apply(c10::make_intrusive<BodyHolder>(std::move(function)),
                                  at::TensorList(wanting));
}

at::Tensor recompute(std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
                     const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return function(inputs);
  }
  const Body body = [function = std::move(function)](const variable_list& in) {
    return variable_list{function(in)};
  };
  return recompute(body, inputs).front();
}

bool will_recompute() {
  return is_first_time;
}

}  // namespace kinora::ops
