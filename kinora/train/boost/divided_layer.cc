#include "kinora/train/boost/divided_layer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"

namespace kinora::train {
namespace {

/// An operation that multiplies by a layer's weight: where it has the weight, its input and a bias.
struct LayerOperation {
  std::string_view name;
  size_t weight;
  size_t input;
  std::optional<size_t> bias;
  bool has_channels;  // its output has them in dim 1 of a batch
};

constexpr std::array kLayerOperations = {
    LayerOperation{"aten::linear", 1, 0, 2, false},
    LayerOperation{"aten::matmul", 1, 0, std::nullopt, false},
    LayerOperation{"aten::mm", 1, 0, std::nullopt, false},
    LayerOperation{"aten::addmm", 2, 1, 0, false},
    LayerOperation{"aten::conv1d", 1, 0, 2, true},
    LayerOperation{"aten::conv2d", 1, 0, 2, true},
    LayerOperation{"aten::conv3d", 1, 0, 2, true},
};

/// What only looks at a weight in another way.
constexpr std::array<std::string_view, 4> kViews = {"aten::t", "aten::transpose", "aten::numpy_T",
                                                    "aten::detach"};

int64_t dim_of_outputs(const LayerOperation& operation, const at::Tensor& output,
                       const at::Tensor& weight) {
  return operation.has_channels ? output.dim() - weight.dim() + 1 : output.dim() - 1;
}

/// The whole outputs from every rank's, in dim `dim`. All go on with them in the same way, so
/// backward takes this rank's part of the gradient.
at::Tensor gathered(const DividedLayer& layer, const at::Tensor& output, int64_t dim) {
  std::vector<int64_t> whole = output.sizes().vec();
  whole[static_cast<size_t>(dim)] *= layer.group.size();
  const nn::Box box{
      .whole = whole,
      .dim = dim,
      .stretches = std::vector<int64_t>(static_cast<size_t>(layer.parts),
                                        whole[static_cast<size_t>(dim)] / layer.parts),
      .index = layer.group.rank(),
      .count = layer.group.size()};
  const comm::Differentiable function = {
      [group = layer.group, box](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>*) {
        const at::Tensor own = inputs[0].contiguous();
        std::vector<int64_t> shape = own.sizes().vec();
        shape.insert(shape.begin(), group.size());
        const at::Tensor all = at::empty(shape, own.options());
        group.all_gather(all, own);
        return box.join(all.unbind(0));
      },
      [box](const std::vector<at::Tensor>&, const at::Tensor& gradient) {
        return std::vector<at::Tensor>{box.cut(gradient)};
      }};
  return function({output});
}

/// `output` + `bias`, which may be undefined, of the features or channels in dim `dim`.
at::Tensor with_bias(const at::Tensor& output, const at::Tensor& bias, int64_t dim) {
  if (!bias.defined()) {
    return output;
  }
  std::vector<int64_t> shape(static_cast<size_t>(output.dim()), 1);
  shape[static_cast<size_t>(dim)] = bias.numel();
  return at::add(output, bias.view(shape));
}

}  // namespace

nn::Box box_of(const DividedLayer& layer, const std::vector<int64_t>& whole) {
  const bool is_bias = whole.size() == 1;
  const bool is_whole = is_bias && layer.cut != LayerCut::kOutputs;
  const int64_t dim = layer.cut == LayerCut::kInputs && !is_bias ? 1 : 0;
  const int64_t parts = layer.cut == LayerCut::kInputs ? 1 : layer.parts;
  const int64_t size = whole[static_cast<size_t>(dim)];
  KINORA_CHECK(parts >= 1 && size % (parts * layer.group.size()) == 0, kConfig,
               "[booster] tp_size is ", layer.group.size(), ", which does not divide the ", size,
               layer.cut == LayerCut::kInputs ? " inputs" : " outputs", " of layer ", layer.name,
               parts > 1 ? " in " + std::to_string(parts) + " parts" : "",
               ". Hint: take the layer out of tensor_rules");
  return {.whole = whole,
          .dim = dim,
          .stretches = std::vector<int64_t>(static_cast<size_t>(parts), size / parts),
          .index = is_whole ? 0 : layer.group.rank(),
          .count = is_whole ? 1 : layer.group.size()};
}

void compute_divided(const DividedLayer& layer, const c10::OperatorHandle& operation, size_t place,
                     std::vector<c10::IValue>* stack) {
  const std::string_view name = operation.schema().name();
  if (std::find(kViews.begin(), kViews.end(), name) != kViews.end()) {
    return operation.callBoxed(stack);
  }
  const auto found = std::find_if(
      kLayerOperations.begin(), kLayerOperations.end(),
      [&](const LayerOperation& entry) { return entry.name == name && entry.weight == place; });
  KINORA_CHECK(found != kLayerOperations.end(), kConfig, "[booster] ", name,
               " reads the weight of ", layer.name,
               ", which ranks divide, and only linears and convolutions can be. Hint: take the "
               "layer out of tensor_rules");
  const size_t num_arguments = operation.schema().arguments().size();
  const auto argument = [&](size_t i) -> c10::IValue& {
    return (*stack)[stack->size() - num_arguments + i];
  };
  KINORA_CHECK(!found->has_channels || argument(num_arguments - 1).toInt() == 1, kConfig,
               "[booster] ranks cannot divide ", layer.name,
               ", a convolution in groups. Hint: take the layer out of tensor_rules");
  const at::Tensor weight = argument(place).toTensor();
  if (layer.cut != LayerCut::kInputs) {
    argument(found->input) = comm::shared(layer.group, argument(found->input).toTensor());
  }
  if (layer.cut == LayerCut::kOutputs) {
    return operation.callBoxed(stack);
  }
  // The bias comes once, to the whole.
  at::Tensor bias;
  if (found->bias && !argument(*found->bias).isNone()) {
    bias = argument(*found->bias).toTensor();
  }
  at::Tensor output;
  if (name == "aten::addmm") {
    for (const size_t factor : {size_t{3}, size_t{4}}) {
      KINORA_CHECK(
          argument(factor).toScalar().equal(1), kConfig, "[booster] ", layer.name,
          " multiplies what it adds up by a factor, which layers that ranks divide cannot. "
          "Hint: take the layer out of tensor_rules");
    }
    output = at::mm(argument(found->input).toTensor(), weight);
    torch::jit::drop(*stack, num_arguments);
  } else {
    if (found->bias) {
      argument(*found->bias) = c10::IValue();
    }
    operation.callBoxed(stack);
    output = torch::jit::pop(*stack).toTensor();
  }
  const int64_t dim = dim_of_outputs(*found, output, weight);
  output = layer.cut == LayerCut::kInputs ? comm::sum(layer.group, output)
                                          : gathered(layer, output, dim);
  torch::jit::push(*stack, with_bias(output, bias, dim));
}

}  // namespace kinora::train
