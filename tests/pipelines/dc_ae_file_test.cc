#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kinora/io/file.h"
#include "kinora/models/autoencoders/dc_ae.h"
#include "kinora/pipelines/autoencoder_config.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/models/formula_file.h"
#include "tests/models/transformers/fixture.h"

namespace kinora::pipelines {
namespace dc_ae_file_test {

namespace fs = std::filesystem;
using io::test::TemporaryFolder;
using models::formula_values;
using models::relative_error;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// As the published ones of ImageNet, whose encoder.conv_in.conv is also HunyuanVideo's name.
json small_config() {
  return {{"_class_name", "AutoencoderDC"},
          {"latent_channels", 2},
          {"attention_head_dim", 4},
          {"encoder_block_types", {"ResBlock", "ResBlock", "EfficientViTBlock"}},
          {"decoder_block_types", {"ResBlock", "ResBlock", "EfficientViTBlock"}},
          {"encoder_block_out_channels", {4, 4, 8}},
          {"decoder_block_out_channels", {4, 4, 8}},
          {"encoder_layers_per_block", {0, 1, 1}},
          {"decoder_layers_per_block", {0, 1, 1}},
          {"encoder_qkv_multiscales", {json::array(), json::array(), {5}}},
          {"decoder_qkv_multiscales", {json::array(), json::array(), json::array()}},
          {"decoder_norm_types", {"batch_norm", "batch_norm", "rms_norm"}},
          {"decoder_act_fns", {"relu", "relu", "silu"}},
          {"scaling_factor", 0.5}};
}

std::unique_ptr<models::Autoencoder> model_of(const json& config) {
  return make_autoencoder(parse_autoencoder_config(config.dump(), "config.json"));
}

/// All that a file of it has.
models::NamedTensors weights_of(const json& config) {
  const auto model = model_of(config);
  models::NamedTensors weights = models::formula_weights(*model);
  for (const auto& [path, buffer] : model->named_buffers()) {
    weights[path] = formula_values(path, buffer->sizes()) / 4.0 + 1.0;
    if (path.ends_with("running_mean")) {
      weights[path.substr(0, path.rfind('.')) + ".num_batches_tracked"] =
          at::full({}, 100, at::kLong);
    }
  }
  return weights;
}

void write_folder(const fs::path& folder, const json& config, const models::NamedTensors& weights) {
  fs::create_directories(folder);
  const std::string text = config.dump();
  io::write_file_atomic(folder / "config.json", std::string_view(text));
  models::write_tensors(folder / "diffusion_pytorch_model.safetensors", weights);
}

TEST(DcAeFileTest, AFolderOfDiffusersIsOpened) {
  const TemporaryFolder folder;
  const models::NamedTensors weights = weights_of(small_config());
  write_folder(folder / "vae", small_config(), weights);
  const auto expected = model_of(small_config());
  models::set_formula_weights(*expected);
  for (const auto& [path, buffer] : expected->named_buffers()) {
    *buffer = weights.at(path);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = formula_values("x", {1, 3, 8, 12});
  for (const fs::path& path : {folder.path(), folder / "vae"}) {
    const auto model = open_autoencoder(path, at::kCPU, at::kFloat);
    const at::Tensor latents = model->encode(pixels).mean;
    EXPECT_EQ(latents.sizes(), (std::vector<int64_t>{1, 2, 2, 3}));
    // Weights lie as activations do, for which the library sums in another order.
    EXPECT_LT(relative_error(latents, expected->encode(pixels).mean), 1e-6);
    EXPECT_LT(relative_error(model->decode(latents), expected->decode(latents)), 1e-6);
  }
  // bf16 is for weights and activations, not for statistics; fp16 is not taken.
  const auto half = open_autoencoder(folder.path(), at::kCPU, at::kBFloat16);
  EXPECT_EQ(half->named_parameters()[0].parameter->value.scalar_type(), at::kBFloat16);
  ASSERT_EQ(half->named_buffers().size(), 2);
  EXPECT_EQ(half->named_buffers()[0].buffer->scalar_type(), at::kFloat);
  EXPECT_EQ(open_autoencoder(folder.path(), at::kCPU, at::kHalf)
                ->named_parameters()[0]
                .parameter->value.scalar_type(),
            at::kFloat);
}

TEST(DcAeFileTest, FingerprintsNameAllThatDecides) {
  const TemporaryFolder folder;
  const models::NamedTensors weights = weights_of(small_config());
  write_folder(folder / "a", small_config(), weights);
  write_folder(folder / "same", small_config(), weights);
  EXPECT_EQ(fingerprint(folder / "a"), fingerprint(folder / "same"));
  const std::vector<std::pair<const char*, json>> changes = {
      {"scaling_factor", 0.25},
      {"encoder_out_shortcut", false},
      {"decoder_in_shortcut", false},
      {"attention_head_dim", 8},
      {"decoder_act_fns", {"silu", "relu", "silu"}},
      {"decoder_norm_types", {"batch_norm", "rms_norm", "rms_norm"}}};
  for (const auto& [key, value] : changes) {
    json config = small_config();
    config[key] = value;
    write_folder(folder / key, config, weights);
    EXPECT_NE(fingerprint(folder / key), fingerprint(folder / "a")) << key;
  }
  models::NamedTensors other = weights;
  for (auto& [name, value] : other) {
    value = name.ends_with("running_mean") ? value + 1.0 : value;
  }
  write_folder(folder / "mean", small_config(), other);
  EXPECT_NE(fingerprint(folder / "mean"), fingerprint(folder / "a"));
}

/// The configs of mit-han-lab's dc-ae-f32c32-sana-1.0 and, with `stages` from six, of
/// dc-ae-f{32,64,128}-in-1.0, without what is the default.
json published(bool sana, size_t stages, int64_t latent_channels) {
  const std::vector<int64_t> widths = {128, 256, 512, 512, 1024, 1024, 2048, 2048};
  json config = {{"_class_name", "AutoencoderDC"}, {"latent_channels", latent_channels}};
  const auto list = [stages](const json& first, const json& rest) {
    json values = json::array();
    for (size_t i = 0; i < stages; ++i) {
      values.push_back(i < 3 ? first : rest);
    }
    return values;
  };
  for (const char* name : {"encoder", "decoder"}) {
    const std::string half = name;
    config[half + "_block_out_channels"] =
        std::vector<int64_t>(widths.begin(), widths.begin() + static_cast<int64_t>(stages));
    config[half + "_block_types"] = list("ResBlock", "EfficientViTBlock");
    if (!sana) {
      config[half + "_qkv_multiscales"] = list(json::array(), json::array());
      config[half + "_layers_per_block"] = list(0, 2);
      config[half + "_layers_per_block"][1] = half == "encoder" ? 4 : 5;
      config[half + "_layers_per_block"][2] = half == "encoder" ? 8 : 10;
    }
  }
  if (sana) {
    config["downsample_block_type"] = "Conv";
    config["upsample_block_type"] = "interpolate";
    config["scaling_factor"] = 0.41407;
  } else {
    config["decoder_norm_types"] = list("batch_norm", "rms_norm");
    config["decoder_act_fns"] = list("relu", "silu");
  }
  return config;
}

TEST(DcAeFileTest, SizesOfThePublishedModels) {
  const auto expect = [](const json& config, int64_t compression, int64_t parameters,
                         int64_t statistics) {
    const auto model = model_of(config);
    EXPECT_EQ(model->space().compression, compression);
    EXPECT_EQ(model->space().channels, config["latent_channels"].get<int64_t>());
    int64_t count = 0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      count += parameter->numel();
    }
    int64_t in_buffers = 0;
    for (const auto& [path, buffer] : model->named_buffers()) {
      in_buffers += buffer->numel();
    }
    EXPECT_EQ(count, parameters);
    EXPECT_EQ(in_buffers, statistics);
  };
  // Counted in diffusers' code.
  expect(published(true, 6, 32), 32, 312'250'275, 0);
  expect(published(false, 6, 32), 32, 323'356'460, 12'800);
  expect(published(false, 7, 128), 64, 676'896'140, 12'800);
  expect(published(false, 8, 512), 128, 1'120'682'252, 12'800);
  EXPECT_EQ(model_of(published(true, 6, 32))->space().scale, std::vector<double>{0.41407});
}

TEST(DcAeFileTest, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  models::NamedTensors weights = weights_of(small_config());
  weights.erase("decoder.up_blocks.1.1.norm.running_var");
  weights["decoder.up_blocks.0.0.conv.weight"] = formula_values("more", {1});
  weights["encoder.conv_out.bias"] = formula_values("bias", {3});
  write_folder(folder / "vae", small_config(), weights);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] { return open_autoencoder(folder / "vae", at::kCPU, at::kFloat); }),
              AllOf(HasSubstr("1 missing [decoder.up_blocks.1.1.norm.running_var]"),
                    HasSubstr("1 unexpected [decoder.up_blocks.0.0.conv.weight]"),
                    HasSubstr("encoder.conv_out.bias (must be [2], is [3])")));
  const auto refused = [](const char* key, const json& value) {
    json config = small_config();
    config[key] = value;
    return error_of(ErrorKind::kConfig, [&] { return model_of(config); });
  };
  EXPECT_THAT(refused("decoder_norm_types", "layer_norm"),
              HasSubstr("decoder_norm_types must be rms_norm or batch_norm, got layer_norm"));
  EXPECT_THAT(refused("decoder_act_fns", {"silu", "gelu", "silu"}), HasSubstr("got gelu"));
  EXPECT_THAT(refused("decoder_act_fns", {"silu", "silu"}), HasSubstr("must have 3 entries"));
  EXPECT_THAT(refused("encoder_block_types", "EViTS5_GLU"), HasSubstr("got EViTS5_GLU"));
  EXPECT_THAT(refused("encoder_layers_per_block", {1, 1}), HasSubstr("must have 3 entries"));
  EXPECT_THAT(refused("upsample_block_type", "bilinear"), HasSubstr("got bilinear"));
  EXPECT_THAT(refused("decoder_conv_act_fn", "silu"),
              HasSubstr("decoder_conv_act_fn must be relu"));
  EXPECT_THAT(refused("in_channels", 4), HasSubstr("in_channels must be 3"));
}

}  // namespace dc_ae_file_test
}  // namespace kinora::pipelines
