#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/layers/band_net.h"
#include "tests/error_of.h"
#include "tests/models/autoencoders/autoencoder_fixture.h"
#include "tests/models/peak_memory.h"

namespace kinora::models {

/// What pixels become, in the raw space of the fixtures: means and log variances, if there are any.
inline at::Tensor raw_encode(Autoencoder& model, const at::Tensor& pixels) {
  const LatentMoments latent = model.encode(pixels);
  at::Tensor mean = from_model_space(model.space(), latent.mean);
  if (!latent.std.defined()) {
    return mean;
  }
  LatentSpace unshifted = model.space();
  unshifted.shift = {0.0};
  return at::cat({mean, at::log(from_model_space(unshifted, latent.std)) * 2.0}, 1);
}

inline at::Tensor raw_decode(Autoencoder& model, const at::Tensor& raw) {
  return model.decode(to_model_space(model.space(), raw));
}

/// A case of a file of tools/make_clip_autoencoder_fixtures.py with gradients: "encode", "decode".
inline void expect_case(const Fixture& fixture, const std::string& name, Autoencoder& model,
                        const std::vector<int64_t>& shape) {
  expect_as_fixture(fixture, model, name, shape, [&](const at::Tensor& x) {
    return name == "encode" ? raw_encode(model, x) : raw_decode(model, x);
  });
}

/// Without: "encode_image", "decode_image", of an image as a clip of one frame.
inline void expect_image(const Fixture& fixture, const std::string& name, Autoencoder& model,
                         const std::vector<int64_t>& shape) {
  set_formula_weights(model, at::kDouble);
  const at::Tensor input = formula_values(name + ".input", shape).to(at::kDouble);
  const at::Tensor image = input.squeeze(2);
  const auto run = [&](const at::Tensor& x) {
    return name == "encode_image" ? raw_encode(model, x) : raw_decode(model, x);
  };
  const at::Tensor expected = fixture.tensor(name + ".output");
  EXPECT_LT(relative_error(run(input), expected), 1e-6) << name;
  EXPECT_LT(relative_error(run(image), expected.squeeze(2)), 1e-6) << name;
}

/// Values and gradients within a budget must be those without.
inline void expect_same_in_pieces(Autoencoder& model, int64_t budget,
                                  const TensorFunction& function,
                                  const std::vector<int64_t>& shape) {
  model.set_memory_budget(0);
  const auto expected = outcome(model, "pieces", shape, function);
  model.set_memory_budget(budget);
  // Gradients are summed up in fp32.
  expect_same_outcome(outcome(model, "pieces", shape, function), expected, 2e-6);
}

/// What latents of these shapes become without gradients, where layers compute in other ways, must
/// be what they become with.
inline void expect_same_without_gradients(Autoencoder& model,
                                          const std::vector<std::vector<int64_t>>& shapes) {
  set_formula_weights(model, at::kDouble);
  for (const std::vector<int64_t>& shape : shapes) {
    const at::Tensor latents = formula_values("z", shape).to(at::kDouble);
    const at::Tensor expected = model.decode(latents).detach();
    const at::NoGradGuard no_grad;
    EXPECT_LT(relative_error(model.decode(latents), expected), 1e-12) << latents.sizes();
  }
}

/// The same in the smallest pieces that there are, in host memory: with the least budget that
/// planning admits.
inline void expect_same_in_all_pieces(Autoencoder& model, const TensorFunction& function,
                                      const std::vector<int64_t>& shape) {
  set_formula_weights(model, at::kDouble);
  model.set_memory_budget(1);
  const std::string error = error_of(ErrorKind::kConfig, [&] {
    (void)function(formula_values("pieces.input", shape).set_requires_grad(true));
  });
  const std::string hint = "must be ";
  ASSERT_NE(error.find(hint), std::string::npos) << error;
  expect_same_in_pieces(model, std::stoll(error.substr(error.find(hint) + hint.size())), function,
                        shape);
}

/// Bytes that decoding takes at most, and with gradients its backward.
inline int64_t decoding_peak(Autoencoder& model, const at::Tensor& latents) {
  const PeakMemory memory;
  const at::Tensor pixels = model.decode(latents);
  if (latents.requires_grad()) {
    torch::autograd::backward({pixels.sum()}, {});
  }
  return memory.bytes();
}

/// Decoding latents of this size takes no more than the budget, with and without gradients, of so
/// many percent of what it takes without one.
template <typename Model, typename Config>
void expect_budgets_hold(const Config& config, const ClipSize& size,
                         const std::vector<int64_t>& percents = {90, 70, 50}) {
  for (const bool with_gradients : {false, true}) {
    Model model(config);
    set_formula_weights(model);
    const at::AutoGradMode mode(with_gradients);
    const at::Tensor latents =
        formula_values("z", {size.batch, size.channels, size.frames, size.rows, size.columns})
            .set_requires_grad(with_gradients);
    const auto peak = [&] { return decoding_peak(model, latents); };
    const int64_t unlimited = peak();
    for (const int64_t percent : percents) {
      const int64_t budget = unlimited * percent / 100;
      model.set_memory_budget(budget);
      const nn::BandPlan plan = model.decode_plan(size, with_gradients);
      EXPECT_FALSE(plan.on_host) << percent;
      EXPECT_LE(peak(), budget) << plan.stages[0].bands << " bands, gradients: " << with_gradients;
    }
  }
}

}  // namespace kinora::models
