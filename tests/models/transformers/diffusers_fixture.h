#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/model.h"
#include "kinora/nn/naming.h"
#include "tests/models/formula_values.h"
#include "tests/places.h"
#include "tests/tolerances.h"

/// What a class of diffusers makes of formula_values.h's weights, whose gradients are probed under
/// its names (tools/reference/make_wan_fixtures.py, make_ltx_video_fixtures.py).
namespace kinora::models {

using Shapes = std::map<std::string, std::vector<int64_t>>;

class DiffusersFixture {
 public:
  explicit DiffusersFixture(const std::string& name)
      : file_(
            io::SafetensorsFile::open(source_path("tests/models/data/" + name + ".safetensors"))) {}

  /// Undefined where the file has none.
  [[nodiscard]] at::Tensor find(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  /// What config.json says.
  [[nodiscard]] nlohmann::json values() const {
    return nlohmann::json::parse(file_.metadata().at("config"));
  }
  [[nodiscard]] const std::string& metadata(const std::string& key) const {
    return file_.metadata().at(key);
  }
  /// The shape of each of diffusers' parameters.
  [[nodiscard]] Shapes shapes() const {
    return nlohmann::json::parse(file_.metadata().at("shapes")).get<Shapes>();
  }

 private:
  io::SafetensorsFile file_;
};

inline std::map<std::string, std::vector<std::string>> keys_of(const nn::Naming& naming) {
  std::map<std::string, std::vector<std::string>> keys;
  for (const nn::OtherName& name : naming) {
    keys[name.path] = name.keys;
  }
  return keys;
}

/// Gives the model what the formula makes of diffusers' names. Returns how many of these it has
/// used.
inline size_t set_named_weights(Model& model, const nn::Naming& naming, const Shapes& shapes) {
  const auto keys = keys_of(naming);
  size_t used = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    std::vector<at::Tensor> parts;
    for (const std::string& key : keys.at(path)) {
      parts.push_back(formula_weight(key, shapes.at(key)));
      ++used;
    }
    parameter->value =
        at::cat(parts, 0).view(parameter->shape).contiguous().set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
  return used;
}

/// The gradients that backward has left are those of the fixture.
inline void expect_named_gradients(Model& model, const nn::Naming& naming,
                                   const DiffusersFixture& fixture) {
  const auto keys = keys_of(naming);
  const Shapes shapes = fixture.shapes();
  for (const auto& [path, parameter] : model.named_parameters()) {
    const std::vector<at::Tensor> parts =
        parameter->grad.chunk(static_cast<int64_t>(keys.at(path).size()));
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string& key = keys.at(path)[part];
      const at::Tensor own = parts[part].to(at::kDouble);
      const at::Tensor got = at::stack(
          {own.norm(),
           (own * formula_values(key, shapes.at(key)).view(own.sizes()).to(at::kDouble)).sum()});
      const at::Tensor want = fixture.find("grad." + key).to(at::kDouble);
      const double norm = want[0].item<double>();
      EXPECT_LT((got - want).abs().max().item<double>(), tolerance::kWholeModel * norm) << key;
    }
  }
}

}  // namespace kinora::models
