#include "kinora/pipelines/widened_input.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "kinora/models/families.h"

namespace kinora::pipelines {
namespace {

constexpr const char* kUnetWeight = "conv_in.weight";
constexpr const char* kFluxWeight = "x_embedder.proj.weight";

}  // namespace

std::optional<WidenedInput> widen_input(const models::ModelConfig& model,
                                        checkpoint::LateTensors& tensors) {
  const models::ModelShape shape = models::shape_of(model);
  const bool has_channels =
      models::fills_in(shape.input) || shape.input == models::ShownInput::kEdit;
  if (!has_channels) {
    return std::nullopt;
  }
  const bool fills_patches = shape.input == models::ShownInput::kFill;
  const std::string name = fills_patches ? kFluxWeight : kUnetWeight;
  // Flux' reads patches, all places of a channel one behind the other.
  const int64_t places = fills_patches ? shape.patch * shape.patch : 1;
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.shape.size() < 2 ||
      found->second.shape[1] != model.in_channels * places) {
    return std::nullopt;
  }
  const at::Tensor weight = found->second.read_all();
  std::vector<int64_t> sizes = weight.sizes().vec();
  sizes[1] = shape.channels_beside * places;
  found->second = checkpoint::late_tensor(at::cat({weight, at::zeros(sizes, weight.options())}, 1));
  return WidenedInput{.weight = name, .channels = shape.channels_beside};
}

}  // namespace kinora::pipelines
