#include "kinora/models/unets/unet_names.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "kinora/models/model.h"

namespace kinora::models {
namespace {

/// A projection around attention, which is a convolution of one place in some files.
bool is_projection(std::string_view path) {
  return path.ends_with(".proj_in.weight") || path.ends_with(".proj_out.weight");
}

}  // namespace

nn::Naming unet_naming(const ModelConfig& config) {
  nn::Naming naming;
  const std::unique_ptr<Model> model = make_model(config);  // without values
  for (const auto& [path, parameter] : model->named_parameters()) {
    if (path.starts_with("text_encoder.")) {
      continue;
    }
    nn::OtherName name{.path = path, .keys = {path}};
    if (is_projection(path) && !config.unet.linear_projection) {
      name.shape = parameter->shape;
      name.shape.insert(name.shape.end(), {1, 1});
    }
    naming.push_back(std::move(name));
  }
  return naming;
}

std::optional<nn::Naming> find_unet_naming(const std::vector<std::string>& names) {
  if (!std::ranges::count(names, "down_blocks.0.resnets.0.time_emb_proj.weight")) {
    return std::nullopt;
  }
  nn::Naming naming;
  for (const std::string& name : names) {
    naming.push_back({.path = name, .keys = {name}});
  }
  return naming;
}

}  // namespace kinora::models
