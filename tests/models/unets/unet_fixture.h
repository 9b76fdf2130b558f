#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/rounding.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "tests/models/formula_values.h"
#include "tests/places.h"

namespace kinora::models {

/// A file of tools/reference/make_unet_fixtures.py, whose top lists the tensors.
class UnetFixture {
 public:
  explicit UnetFixture(const std::string& name)
      : file_(
            io::SafetensorsFile::open(source_path("tests/models/data/" + name + ".safetensors"))) {}

  /// Undefined where the file has none.
  [[nodiscard]] at::Tensor find(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }

  [[nodiscard]] ModelConfig config() const {
    const auto values = nlohmann::json::parse(file_.metadata().at("config"));
    ModelConfig config;
    config.architecture = "unet";
    config.in_channels = values["in_channels"];
    config.learn_sigma = values["out_channels"] != values["in_channels"];
    config.height = values["sample_size"];
    config.width = values["sample_size"];
    config.time_scale = 1.0;
    if (values["_class_name"] == "UNet2DModel") {
      return resolved(of_places(values, std::move(config)));
    }
    config.text_channels = values["cross_attention_dim"];
    config.text_tokens = 5;
    if (find("forward.labels").defined()) {
      const bool in_time = !values["num_class_embeds"].is_null();
      config.architecture = "class_unet";
      config.num_classes = 5;
      config.unet.classes = in_time ? UnetClasses::kTime : UnetClasses::kToken;
    }
    config.pooled_channels = find("forward.pooled").defined() ? find("forward.pooled").size(1) : 0;
    UnetConfig& unet = config.unet;
    unet.channels = values["block_out_channels"].get<std::vector<int64_t>>();
    unet.resnets = values["layers_per_block"];
    const nlohmann::json& depths = values["transformer_layers_per_block"];
    unet.depths = depths.is_array() ? depths.get<std::vector<int64_t>>()
                                    : std::vector(unet.channels.size(), depths.get<int64_t>());
    unet.middle_depth = unet.depths.back();
    for (size_t level = 0; level < unet.depths.size(); ++level) {
      if (values["down_block_types"][level] == "DownBlock2D") {
        unet.depths[level] = 0;
      }
    }
    const nlohmann::json& heads = values["attention_head_dim"];
    unet.heads = heads.is_array() ? heads.get<std::vector<int64_t>>()
                                  : std::vector(unet.channels.size(), heads.get<int64_t>());
    unet.norm_groups = values["norm_num_groups"];
    unet.norm_epsilon = values["norm_eps"];
    unet.linear_projection = values["use_linear_projection"];
    if (config.pooled_channels > 0) {
      unet.size_channels = values["addition_time_embed_dim"];
      unet.reads_score = find("forward.time_ids").size(1) == 5;
    }
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.labels = find("forward.labels");
    conditions.text = find("forward.text");
    conditions.text_lengths = find("forward.text_lengths");
    if (const at::Tensor ids = find("forward.time_ids"); ids.defined()) {
      conditions.pooled = find("forward.pooled");
      conditions.original_size = ids.narrow(1, 0, 2);
      conditions.crop = ids.narrow(1, 2, 2);
      if (ids.size(1) == 5) {
        conditions.score = ids.select(1, 4);
      } else {
        conditions.height = ids.select(1, 4);
        conditions.width = ids.select(1, 5);
      }
    }
    return conditions;
  }

 private:
  /// A UNet2DModel.
  [[nodiscard]] ModelConfig of_places(const nlohmann::json& values, ModelConfig config) const {
    config.architecture = "class_unet";
    UnetConfig& unet = config.unet;
    unet.attends = UnetAttends::kPlaces;
    if (find("forward.labels").defined()) {
      config.num_classes = 5;
      unet.classes = UnetClasses::kTime;
    }
    unet.channels = values["block_out_channels"].get<std::vector<int64_t>>();
    unet.resnets = values["layers_per_block"];
    for (size_t level = 0; level < unet.channels.size(); ++level) {
      unet.depths.push_back(values["down_block_types"][level] == "AttnDownBlock2D" ? 1 : 0);
      const nlohmann::json& width = values["attention_head_dim"];
      unet.heads.push_back(width.is_null() ? 1 : unet.channels[level] / width.get<int64_t>());
    }
    unet.middle_depth = values["add_attention"] ? 1 : 0;
    unet.norm_groups = values["norm_num_groups"];
    unet.norm_epsilon = values["norm_eps"];
    unet.sines_first = !values["flip_sin_to_cos"].get<bool>();
    unet.time_shift = values["freq_shift"];
    unet.pads_behind = values["downsample_padding"] == 0;
    unet.scales_by_time = values["resnet_time_scale_shift"] == "scale_shift";
    unet.resizes_in_blocks = values["downsample_type"] == "resnet";
    return config;
  }

  io::SafetensorsFile file_;
};

/// Gives every parameter its formula's value and, if it is trained, zeros to gather gradients in,
/// one parameter behind the other in memory, each on 64 bytes, and in its order there, frozen ones
/// apart, as optim::Arena does.
inline void set_packed_weights(nn::Module& module, at::Device device = at::kCPU,
                               at::ScalarType type = at::kFloat) {
  std::vector<nn::NamedParameter> parameters = module.named_parameters();
  std::ranges::stable_partition(
      parameters, [](const nn::NamedParameter& named) { return named.parameter->frozen; });
  constexpr int64_t kAlignment = 32;  // elements
  const auto room_of = [](const nn::Parameter& parameter) {
    return round_up(parameter.numel(), kAlignment);
  };
  int64_t numel = 0;
  for (const auto& [path, parameter] : parameters) {
    numel += room_of(*parameter);
  }
  const auto array = [&](at::ScalarType of) {
    return at::zeros({numel}, at::device(device).dtype(of));
  };
  const at::Tensor values = array(type);
  const at::Tensor islands = array(at::kFloat);
  const at::Tensor grads = array(at::kFloat);
  int64_t offset = 0;
  for (const auto& [path, parameter] : parameters) {
    std::vector<int64_t> stored = parameter->shape;
    if (parameter->channels_last) {
      std::rotate(stored.begin() + 1, stored.begin() + 2, stored.end());
    }
    const auto view = [&, parameter = parameter](const at::Tensor& flat) {
      const at::Tensor part = flat.narrow(0, offset, parameter->numel()).view(stored);
      return (parameter->channels_last ? part.movedim(-1, 1) : part).detach();
    };
    at::Tensor value = view(parameter->fp32_island ? islands : values);
    value.copy_(formula_weight(path, parameter->shape));
    parameter->value = value.set_requires_grad(!parameter->frozen);
    parameter->grad = parameter->frozen ? at::Tensor() : view(grads);
    offset += room_of(*parameter);
  }
}

/// The norm and the product with formula's values, of which the file has those of every gradient.
inline at::Tensor probe(const std::string& name, const at::Tensor& gradient) {
  const at::Tensor wide = gradient.to(at::kDouble);
  return at::stack({wide.norm(), (wide * formula_values(name, wide.sizes())).sum()});
}

}  // namespace kinora::models
