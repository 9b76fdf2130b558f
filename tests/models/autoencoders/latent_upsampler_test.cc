// LTX-Video's spatial upscaler compared with diffusers' (tools/make_clip_autoencoder_fixtures.py).

#include "kinora/models/autoencoders/latent_upsampler.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"
#include "tests/models/formula_values.h"

namespace kinora::models {
namespace latent_upsampler_test {

using testing::HasSubstr;

LatentUpsamplerConfig small(int64_t dims) {
  return {.in_channels = 4, .mid_channels = 32, .num_blocks_per_stage = 2, .dims = dims};
}

/// As the fixture's autoencoder has them.
LatentSpace space() {
  LatentSpace space;
  space.channels = 4;
  space.scale = {1 / 2.0, 1 / 0.5, 1 / 1.0, 1 / 1.5};
  space.shift = {0.5, -0.25, 0.0, 0.125};
  return space;
}

class LatentUpsamplerTest : public testing::TestWithParam<int64_t> {};

TEST_P(LatentUpsamplerTest, LatentsAreThoseOfDiffusers) {
  const at::NoGradGuard guard;
  const Fixture fixture("latent_upsampler_" + std::to_string(GetParam()) + "d.safetensors");
  LatentUpsampler model(small(GetParam()));
  const auto input = [](const std::string& name) {
    return formula_values(name + ".input", {2, 4, 3, 2, 5});
  };
  set_formula_weights(model, at::kDouble);
  EXPECT_LT(relative_error(model.forward(input("forward").to(at::kDouble)),
                           fixture.tensor("forward.output")),
            1e-6);
  set_formula_weights(model, at::kFloat);
  const at::Tensor expected = fixture.tensor("forward.output");
  EXPECT_EQ(expected.sizes(), at::IntArrayRef({2, 4, 3, 4, 10}));
  EXPECT_LT(relative_error(model.forward(input("forward")), expected), 1e-5);
  EXPECT_LT(
      relative_error(upsampled(model, space(), input("plain"), {}), fixture.tensor("plain.output")),
      1e-5);
  EXPECT_LT(relative_error(upsampled(model, space(), input("tuned"), {.adain = 0.6, .tones = 0.7}),
                           fixture.tensor("tuned.output")),
            1e-5);
}

INSTANTIATE_TEST_SUITE_P(Dims, LatentUpsamplerTest, testing::Values(2, 3));

TEST(LatentUpsamplerShapeTest, OthersAreRefused) {
  LatentUpsampler model(small(3));
  set_formula_weights(model, at::kFloat);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return model.forward(formula_values("x", {1, 5, 3, 2, 5}));
                       }),
              HasSubstr("[B, 4, T, H, W], got [1, 5, 3, 2, 5]"));
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [] { return std::make_unique<LatentUpsampler>(small(1)); }),
      HasSubstr("dims must be 2 or 3, got 1"));
}

}  // namespace latent_upsampler_test
}  // namespace kinora::models
