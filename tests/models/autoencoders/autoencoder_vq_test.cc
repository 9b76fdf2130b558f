#include "kinora/models/autoencoders/autoencoder_vq.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/autoencoder_fixture.h"

namespace kinora::models {
namespace autoencoder_vq_test {

AutoencoderVqConfig small_config() {
  return {.halves = {.block_out_channels = {8, 16, 24},
                     .layers_per_block = 1,
                     .latent_channels = 4,
                     .norm_num_groups = 4,
                     .encoder_attention = {false, false, true},
                     .decoder_attention = {false, false, true},
                     .scale = {0.5}},
          .num_vq_embeddings = 40,
          .vq_embed_dim = 3};
}

at::Tensor raw_latents(AutoencoderVq& model, const at::Tensor& pixels) {
  return model.encode(pixels).mean / model.space().scale[0];
}

at::Tensor decoded(AutoencoderVq& model, const at::Tensor& z) {
  return model.decode(to_model_space(model.space(), z));
}

TEST(AutoencoderVqTest, EqualsDiffusersForwardAndBackward) {
  const Fixture fixture("vq_vae.safetensors");
  AutoencoderVq model(small_config());
  const auto decode = [&](const at::Tensor& z) { return decoded(model, z); };
  expect_as_fixture(fixture, model, "encode", {2, 3, 16, 12},
                    [&](const at::Tensor& x) { return raw_latents(model, x); });
  expect_as_fixture(fixture, model, "decode", {2, 3, 4, 3}, decode);
  model.set_quantises(false);
  expect_as_fixture(fixture, model, "decode_plain", {2, 3, 4, 3}, decode);
  EXPECT_FALSE(model.encode(formula_values("x", {1, 3, 8, 8})).std.defined());
}

TEST(AutoencoderVqTest, EqualsDiffusersInFp32) {
  const at::NoGradGuard no_grad;
  const Fixture fixture("vq_vae.safetensors");
  AutoencoderVq model(small_config());
  set_formula_weights(model);
  const at::Tensor latents = raw_latents(model, formula_values("encode.input", {2, 3, 16, 12}));
  EXPECT_LT(relative_error(latents, fixture.tensor("encode.output")), 1e-5);
  const at::Tensor pixels = decoded(model, formula_values("decode.input", {2, 3, 4, 3}));
  EXPECT_LT(relative_error(pixels, fixture.tensor("decode.output")), 1e-5);
}

TEST(AutoencoderVqTest, NearestCodesAreThoseOfDiffusers) {
  Codebook codebook(8192, 3);
  codebook.weight.value = formula_values("codes", {8192, 3}) * 3.0;
  const at::Tensor z = formula_values("z", {2, 3, 16, 16}) * 3.0;
  const at::Tensor expected = Fixture("vq_codes.safetensors").tensor("numbers");
  // At once, in uneven parts, one by one.
  for (const int64_t bytes : {int64_t{0}, int64_t{100} * 8192 * 4, int64_t{1}}) {
    EXPECT_TRUE(at::equal(codebook.nearest(z, bytes), expected)) << bytes;
  }
  EXPECT_TRUE(at::equal(codebook.codes(expected).permute({0, 2, 3, 1}),
                        at::embedding(codebook.weight.value, expected)));
}

TEST(AutoencoderVqTest, CodesAreTheirOwnNearest) {
  const at::NoGradGuard no_grad;
  AutoencoderVq model(small_config());
  set_formula_weights(model);
  const at::Tensor z = formula_values("z", {1, 3, 4, 4});
  const at::Tensor codes = model.codebook.codes(model.codebook.nearest(z, 0));
  EXPECT_FALSE(at::equal(codes, z));
  const at::Tensor pixels = decoded(model, z);
  EXPECT_TRUE(at::equal(decoded(model, codes), pixels));
  model.set_quantises(false);
  EXPECT_TRUE(at::equal(decoded(model, codes), pixels));
  EXPECT_FALSE(at::equal(decoded(model, z), pixels));
}

TEST(AutoencoderVqTest, BudgetsChangeMemoryOnly) {
  AutoencoderVq model(small_config());
  const auto encode = [&](const at::Tensor& x) { return raw_latents(model, x); };
  const auto decode = [&](const at::Tensor& z) { return decoded(model, z); };
  const auto encoded = outcome(model, "encode", {2, 3, 48, 20}, encode);
  const auto pixels = outcome(model, "decode", {2, 3, 12, 5}, decode);
  for (const int64_t budget : {3'000'000, 1'000'000}) {
    model.set_memory_budget(budget);
    expect_same_outcome(outcome(model, "encode", {2, 3, 48, 20}, encode), encoded, 2e-6);
    expect_same_outcome(outcome(model, "decode", {2, 3, 12, 5}, decode), pixels, 2e-6);
  }
}

TEST(AutoencoderVqTest, WrongSizesAreNamed) {
  const auto refused = [](const AutoencoderVqConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { return AutoencoderVq(config).limits().bytes; });
  };
  AutoencoderVqConfig config = small_config();
  config.num_vq_embeddings = 0;
  EXPECT_NE(refused(config).find("got 0 codes of 3"), std::string::npos);
  config = small_config();
  config.halves.encoder_attention = {true};
  EXPECT_NE(refused(config).find("each of 3 levels must attend or not, got 1"), std::string::npos);
  config = small_config();
  config.halves.in_channels = 4;
  EXPECT_NE(refused(config).find("in_channels must be 1 (grey) or 3, got 4"), std::string::npos);
}

}  // namespace autoencoder_vq_test
}  // namespace kinora::models
