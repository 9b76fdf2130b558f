#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
    config.text_channels = values["cross_attention_dim"];
    config.text_tokens = 5;
    UnetConfig& unet = config.unet;
    unet.channels = values["block_out_channels"].get<std::vector<int64_t>>();
    unet.resnets = values["layers_per_block"];
    unet.depths = values["transformer_layers_per_block"].get<std::vector<int64_t>>();
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
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.text = find("forward.text");
    conditions.text_lengths = find("forward.text_lengths");
    return conditions;
  }

 private:
  io::SafetensorsFile file_;
};

/// The norm and the product with formula's values, of which the file has those of every gradient.
inline at::Tensor probe(const std::string& name, const at::Tensor& gradient) {
  const at::Tensor wide = gradient.to(at::kDouble);
  return at::stack({wide.norm(), (wide * formula_values(name, wide.sizes())).sum()});
}

}  // namespace kinora::models
