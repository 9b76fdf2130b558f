#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kinora/device/host_bytes.h"
#include "kinora/diffusion/objective.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/transformers/dit.h"
#include "tests/places.h"

namespace kinora::models {

/// A committed file of tools/reference, whose README lists the tensors.
class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : file_(io::SafetensorsFile::open(source_path("tests/models/data/").string() + name)) {}

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    EXPECT_NE(found, nullptr) << "no tensor " << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }

  [[nodiscard]] bool contains(const std::string& name) const { return file_.find(name) != nullptr; }

  [[nodiscard]] const std::string& metadata(const std::string& key) const {
    return file_.metadata().at(key);
  }

  /// The model that made the file.
  [[nodiscard]] ModelConfig config() const {
    const auto json = nlohmann::json::parse(metadata("config"));
    ModelConfig config;
    config.height = json["height"];
    config.width = json["width"];
    config.in_channels = json["in_channels"];
    config.transformer.patch = json["patch"];
    config.transformer.hidden = json["hidden"];
    config.transformer.depth = json["depth"];
    config.transformer.heads = json["heads"];
    config.transformer.mlp_ratio = json["mlp_ratio"];
    config.num_classes = json["num_classes"];
    config.learn_sigma = json["learn_sigma"];
    config.time_scale = json["time_scale"];
    return resolved(config);
  }

  [[nodiscard]] diffusion::Objective objective() const {
    if (metadata("objective") == "iddpm") {
      return diffusion::Iddpm();
    }
    return diffusion::RectifiedFlow();
  }

 private:
  io::SafetensorsFile file_;
};

/// x0 with the given noise at the given times.
inline diffusion::NoisedBatch noised(const diffusion::Objective& objective, const at::Tensor& x0,
                                     const at::Tensor& noise, const at::Tensor& t) {
  diffusion::NoisedBatch batch;
  batch.t = t;
  batch.noise = noise;
  batch.weights = at::ones_like(t);
  if (const auto* iddpm = std::get_if<diffusion::Iddpm>(&objective)) {
    const at::Tensor index = t.to(at::kCPU, at::kLong);
    const auto column = [&](const std::vector<double>& table) {
      return at::tensor(table, at::kDouble)
          .index_select(0, index)
          .to(x0.device(), at::kFloat)
          .view({-1, 1, 1, 1});
    };
    batch.x_t = column(iddpm->schedule().sqrt_alphas_cumprod) * x0 +
                column(iddpm->schedule().sqrt_one_minus_alphas_cumprod) * noise;
  } else {
    const at::Tensor time = t.view({-1, 1, 1, 1});
    batch.x_t = x0 * (-time + 1.0) + time * noise;
  }
  return batch;
}

/// |got - expected| / |expected|, in float64.
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kCPU, at::kDouble);
  return ((got.detach().to(at::kCPU, at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

/// The key third of a qkv bias has a true gradient of zero: only rounding would be compared.
inline at::Tensor without_key_bias(const std::string& path, const at::Tensor& tensor) {
  if (!path.ends_with("attn.qkv.bias")) {
    return tensor;
  }
  const auto thirds = tensor.chunk(3);
  return at::cat({thirds[0], thirds[2]});
}

}  // namespace kinora::models
