#include "kinora/models/autoencoders/autoencoder_tiny.h"

#include "tests/error_of.h"
#include "tests/models/autoencoders/autoencoder_fixture.h"

namespace kinora::models {
namespace autoencoder_tiny_test {

AutoencoderTinyConfig small_config() {
  return {.channels = 12,
          .latent_channels = 3,
          .num_encoder_blocks = {1, 2, 1},
          .num_decoder_blocks = {2, 1, 1}};
}

TEST(AutoencoderTinyTest, EqualsDiffusersForwardAndBackward) {
  const Fixture fixture("tiny_vae.safetensors");
  AutoencoderTiny model(small_config());
  expect_as_fixture(fixture, model, "encode", {2, 3, 16, 12},
                    [&](const at::Tensor& x) { return model.encode(x).mean; });
  expect_as_fixture(fixture, model, "decode", {2, 3, 4, 3},
                    [&](const at::Tensor& z) { return model.decode(z); });
  EXPECT_FALSE(model.encode(formula_values("x", {1, 3, 8, 8})).std.defined());
}

TEST(AutoencoderTinyTest, BudgetsChangeMemoryOnly) {
  AutoencoderTinyConfig config = small_config();
  config.pools = true;
  AutoencoderTiny model(config);
  const auto encode = [&](const at::Tensor& x) { return model.encode(x).mean; };
  const auto decode = [&](const at::Tensor& z) { return model.decode(z); };
  const auto encoded = outcome(model, "encode", {1, 3, 48, 20}, encode);
  const auto decoded = outcome(model, "decode", {2, 3, 12, 5}, decode);
  for (const int64_t budget : {2'000'000, 600'000}) {
    model.set_memory_budget(budget);
    expect_same_outcome(outcome(model, "encode", {1, 3, 48, 20}, encode), encoded, 2e-6);
    expect_same_outcome(outcome(model, "decode", {2, 3, 12, 5}, decode), decoded, 2e-6);
  }
}

TEST(AutoencoderTinyTest, LevelsMustBeAsMany) {
  AutoencoderTinyConfig config = small_config();
  config.num_decoder_blocks = {1, 1};
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { return AutoencoderTiny(config).limits().bytes; })
                .find("as many levels, got 3 and 2"),
            std::string::npos);
}

}  // namespace autoencoder_tiny_test
}  // namespace kinora::models
