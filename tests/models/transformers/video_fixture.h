#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "tests/models/transformers/fixture.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::models {

/// A committed file of tools/reference with the kind "video", whose README lists the tensors.
class VideoFixture {
 public:
  /// name: without ".safetensors".
  explicit VideoFixture(const std::string& name)
      : file_(io::SafetensorsFile::open(source_path("tests/models/data/").string() + name +
                                        ".safetensors")) {}

  /// Undefined where the file has none.
  [[nodiscard]] at::Tensor find(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    at::Tensor found = find(name);
    EXPECT_TRUE(found.defined()) << "no tensor " << name;
    return found;
  }

  /// How many of the file's tensors have names that begin so.
  [[nodiscard]] int64_t count(const std::string& prefix) const {
    int64_t number = 0;
    for (const io::SafetensorsTensor& tensor : file_.tensors()) {
      number += tensor.name.starts_with(prefix) ? 1 : 0;
    }
    return number;
  }

  /// The model that made the file.
  [[nodiscard]] ModelConfig config(const char* architecture) const {
    const auto json = nlohmann::json::parse(file_.metadata().at("config"));
    ModelConfig config;
    config.architecture = architecture;
    config.frames = json["frames"];
    config.height = json["height"];
    config.width = json["width"];
    config.in_channels = json["in_channels"];
    config.transformer.patch_frames = json["patch_frames"];
    config.transformer.patch = json["patch"];
    config.transformer.hidden = json["hidden"];
    config.transformer.depth = json["depth"];
    config.transformer.heads = json["heads"];
    config.transformer.mlp_ratio = json["mlp_ratio"];
    config.learn_sigma = json["learn_sigma"];
    config.time_scale = json["time_scale"];
    config.text_channels = json["text_channels"];
    config.text_tokens = json["text_tokens"];
    config.transformer.qk_norm = json["qk_norm"].get<bool>() ? ops::Switch::kOn : ops::Switch::kOff;
    config.transformer.position_scale = json["position_scale"];
    config.transformer.time_position_scale = json["time_position_scale"];
    if (std::ranges::count(family_of(config).own_keys, "base_pixels") > 0) {  // all files have it
      config.transformer.base_pixels = json["base_pixels"];
    }
    config.transformer.size_conditions = json["size_conditions"];
    config.transformer.window = json["window"].get<std::vector<int64_t>>();
    config.transformer.rotary_3d = json["rotary_3d"];
    config.transformer.given_embedders = json["given_embedders"];
    const std::map<std::string, KvSampling> samplings = {
        {"none", KvSampling::kNone},
        {"conv", KvSampling::kConv},
        {"ave", KvSampling::kAve},
        {"uniform", KvSampling::kUniform},
        {"uniform_every", KvSampling::kUniformEvery}};
    config.transformer.kv_compress = samplings.at(json["kv_compress"]);
    config.transformer.kv_compress_factor = json["kv_compress_factor"];
    config.transformer.kv_compress_layers = json["kv_compress_layers"].get<std::vector<int64_t>>();
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions(const std::string& of) const {
    const auto flag = [&](const std::string& name) {
      const at::Tensor number = find(of + "." + name);
      return number.defined() ? number.to(at::kBool) : number;
    };
    diffusion::Conditions conditions;
    conditions.text = find(of + ".text");
    conditions.text_lengths = find(of + ".text_lengths");
    conditions.pooled = find(of + ".pooled");
    conditions.null_text = flag("null_text");
    conditions.fps = find(of + ".fps");
    conditions.height = find(of + ".height");
    conditions.width = find(of + ".width");
    conditions.num_frames = find(of + ".num_frames");
    conditions.frame_mask = flag("frame_mask");
    conditions.given = find(of + ".given");
    return conditions;
  }

  /// What `model` makes of the inputs of a case: "forward" or "image".
  [[nodiscard]] at::Tensor run(diffusion::Denoiser& model, const std::string& of) const {
    return model.forward(tensor(of + ".x_t"), tensor(of + ".t"), conditions(of));
  }

 private:
  io::SafetensorsFile file_;
};

/// Gives `model` the file's weights, after the tables that it made itself were compared.
inline void set_weights(Model& model, const VideoFixture& fixture, bool train) {
  int64_t number = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->value = fixture.tensor("weights." + path);
    ASSERT_EQ(parameter->value.sizes(), at::IntArrayRef(parameter->shape)) << path;
    if (train) {
      parameter->value.set_requires_grad(true);
      parameter->grad = at::zeros_like(parameter->value);
    }
    ++number;
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    const at::Tensor expected = fixture.tensor("weights." + path);
    ASSERT_EQ(buffer->sizes(), expected.sizes()) << path;
    if (!path.ends_with("y_embedding")) {
      EXPECT_LT(relative_error(*buffer, expected), 1e-6) << path;
    }
    *buffer = expected;
    ++number;
  }
  EXPECT_EQ(number, fixture.count("weights.")) << "the file has weights that the model lacks";
}

/// All outputs of the file.
inline void expect_outputs(Model& model, const VideoFixture& fixture) {
  const at::NoGradGuard no_grad;
  for (const char* of : {"forward", "image"}) {
    const at::Tensor expected = fixture.find(std::string(of) + ".output");
    if (expected.defined()) {
      EXPECT_LT(relative_error(fixture.run(model, of), expected), tolerance::kWholeModel) << of;
    }
  }
}

/// The gradient of every parameter. `model` has weights for training, whose gradients are zero.
inline void expect_gradients(Model& model, const VideoFixture& fixture) {
  const at::Tensor output = fixture.run(model, "forward");
  torch::autograd::backward({(output * fixture.tensor("forward.cotangent")).sum()}, {});
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_LT(relative_error(parameter->grad, fixture.tensor("grad." + path)),
              tolerance::kWholeModel)
        << path;
  }
}

}  // namespace kinora::models
