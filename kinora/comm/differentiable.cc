#include "kinora/comm/differentiable.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kinora/core/error.h"

namespace kinora::comm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries the functions through the context's IValue map.
struct Holder : torch::CustomClassHolder {
  explicit Holder(Differentiable function) : function(std::move(function)) {}
  Differentiable function;
};

struct Node : torch::autograd::Function<Node> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Holder>& holder,
                            at::TensorList inputs) {
    std::vector<at::Tensor> saved;
    at::Tensor output = holder->function.forward(inputs.vec(), &saved);
    context->saved_data["function"] = c10::IValue::make_capsule(holder);
    context->save_for_backward(std::move(saved));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["function"].toCapsule();
    const Differentiable& function = static_cast<Holder*>(holder.get())->function;
    const at::NoGradGuard no_grad;
    variable_list gradients = {at::Tensor()};  // the holder itself has none
    for (at::Tensor& gradient : function.backward(context->get_saved_variables(), incoming[0])) {
      gradients.push_back(std::move(gradient));
    }
    return gradients;
  }
};

}  // namespace

at::Tensor Differentiable::operator()(const std::vector<at::Tensor>& inputs) const {
  if (!at::GradMode::is_enabled()) {
    std::vector<at::Tensor> saved;
    return forward(inputs, &saved);
  }
  return Node::apply(c10::make_intrusive<Holder>(*this), at::TensorList(inputs));
}

at::Tensor all_to_all(const Group& group, const at::Tensor& x, int64_t split, int64_t joined) {
  if (group.size() == 1) {
    return x;
  }
  const Differentiable function = {
      [group, split, joined](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>*) {
        return group.reshard(inputs[0], split, joined);
      },
      [group, split, joined](const std::vector<at::Tensor>&, const at::Tensor& gradient) {
        return std::vector<at::Tensor>{group.reshard(gradient, joined, split)};
      }};
  return function({x});
}

at::Tensor all_gather(const Group& group, const at::Tensor& part, int64_t dim) {
  if (group.size() == 1) {
    return part;
  }
  const Differentiable function = {
      [group, dim](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>*) {
        const at::Tensor own = inputs[0].contiguous();
        std::vector<int64_t> shape = own.sizes().vec();
        shape.insert(shape.begin(), group.size());
        const at::Tensor all = at::empty(shape, own.options());
        group.all_gather(all, own);
        return all.movedim(0, dim).flatten(dim, dim + 1);
      },
      [group, dim](const std::vector<at::Tensor>&, const at::Tensor& gradient) {
        const int64_t length = gradient.size(dim) / group.size();
        return std::vector<at::Tensor>{gradient.narrow(dim, group.rank() * length, length)
                                           .mul(static_cast<double>(group.size()))};
      }};
  return function({part});
}

namespace {

at::Tensor summed(const Group& group, const at::Tensor& x) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum);
  return sum;
}

}  // namespace

at::Tensor shared(const Group& group, const at::Tensor& x) {
  if (group.size() == 1) {
    return x;
  }
  const Differentiable function = {
      [](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>*) {
        return inputs[0].detach();
      },
      [group](const std::vector<at::Tensor>&, const at::Tensor& gradient) {
        return std::vector<at::Tensor>{summed(group, gradient)};
      }};
  return function({x});
}

at::Tensor sum(const Group& group, const at::Tensor& x) {
  if (group.size() == 1) {
    return x;
  }
  const Differentiable function = {
      [group](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>*) {
        return summed(group, inputs[0]);
      },
      [](const std::vector<at::Tensor>&, const at::Tensor& gradient) {
        return std::vector<at::Tensor>{gradient};
      }};
  return function({x});
}

}  // namespace kinora::comm
