#pragma once

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/models/formula_values.h"
#include "tests/models/transformers/fixture.h"
#include "tests/tolerances.h"

namespace kinora::models {

using TensorFunction = std::function<at::Tensor(const at::Tensor& x)>;

/// What `function` makes of the input that `name` stands for, and the gradients of its product with
/// the cotangent: "output", "input" and the parameters' paths.
inline std::map<std::string, at::Tensor> outcome(nn::Module& model, const std::string& name,
                                                 const std::vector<int64_t>& input_shape,
                                                 const TensorFunction& function,
                                                 at::ScalarType type = at::kDouble) {
  set_formula_weights(model, type);
  const at::Tensor input =
      formula_values(name + ".input", input_shape).to(type).set_requires_grad(true);
  const at::Tensor output = function(input);
  const at::Tensor cotangent = formula_values(name + ".cotangent", output.sizes());
  torch::autograd::backward({(output * cotangent).sum()}, {});
  std::map<std::string, at::Tensor> result = {{"output", output.detach()}, {"input", input.grad()}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    result.emplace(path, parameter->grad);
  }
  return result;
}

/// outcome() in fp64 must be what the fixture (tools/make_clip_autoencoder_fixtures.py) has.
inline void expect_as_fixture(const Fixture& fixture, nn::Module& model, const std::string& name,
                              const std::vector<int64_t>& input_shape,
                              const TensorFunction& function) {
  size_t num_gradients = 0;
  for (const auto& [key, got] : outcome(model, name, input_shape, function)) {
    if (key == "output") {
      EXPECT_LT(relative_error(got, fixture.tensor(name + ".output")), tolerance::kFewRoundings)
          << name;
      continue;
    }
    const std::string file_key = "grad." + name + "." + key;
    if (!fixture.contains(file_key)) {
      EXPECT_EQ(got.abs().max().item<double>(), 0.0) << file_key << " is not in the file";
      continue;
    }
    ++num_gradients;
    const at::Tensor probe =
        formula_values(key == "input" ? name + ".input" : key, got.sizes()).to(at::kDouble);
    const at::Tensor expected = fixture.tensor(file_key).to(at::kDouble);
    const at::Tensor wide = got.to(at::kDouble);
    const double norm = std::max(expected[0].item<double>(), 1e-3);
    EXPECT_NEAR(wide.norm().item<double>(), expected[0].item<double>(),
                tolerance::kFewRoundings * norm)
        << file_key;
    EXPECT_NEAR((wide * probe).sum().item<double>(), expected[1].item<double>(),
                tolerance::kFewRoundings * norm * probe.norm().item<double>())
        << file_key;
  }
  EXPECT_GT(num_gradients, 10);
}

/// The outcomes must be equal to within `tolerance` of the largest value of each tensor.
inline void expect_same_outcome(const std::map<std::string, at::Tensor>& got,
                                const std::map<std::string, at::Tensor>& expected,
                                double tolerance) {
  for (const auto& [key, value] : expected) {
    const double scale = std::max(value.abs().max().item<double>(), 1e-3);
    EXPECT_LT((got.at(key) - value).abs().max().item<double>(), tolerance * scale) << key;
  }
}

}  // namespace kinora::models
