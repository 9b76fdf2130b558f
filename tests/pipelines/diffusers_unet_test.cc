#include "kinora/pipelines/diffusers_unet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/diffusers_plain_unet.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace diffusers_unet_test {

using nlohmann::json;
using testing::HasSubstr;

/// config.json as diffusers writes it, of a file of tools/reference/make_unet_fixtures.py.
json written_by_diffusers(const std::string& name) {
  const auto file =
      io::SafetensorsFile::open(source_path("tests/models/data/" + name + ".safetensors"));
  return json::parse(file.metadata().at("config"));
}

std::string keys_of(const json& config) {
  return unet_keys(DiffusersConfig(config.dump(), "diffusers", "config.json"));
}

models::ModelConfig model_of(const json& config) {
  const json recipe = {{"model", json::parse(keys_of(config))}};
  models::ModelConfig model = parse_config<models::ModelConfig>({recipe.dump(), "recipe"});
  model.time_scale = 1.0;
  return models::resolved(model);
}

TEST(DiffusersUnetTest, ConfigurationsOfDiffusersAreRead) {
  const models::ModelConfig sd1 = model_of(written_by_diffusers("unet_sd1"));
  EXPECT_EQ(sd1.architecture, "unet");
  EXPECT_EQ(sd1.in_channels, 4);
  EXPECT_FALSE(sd1.learn_sigma);
  EXPECT_EQ(sd1.text_channels, 10);
  EXPECT_EQ(sd1.text_tokens, 77);
  EXPECT_EQ(sd1.height, 8);
  EXPECT_EQ(sd1.compression, 8);
  EXPECT_EQ(sd1.unet, (models::UnetConfig{.channels = {16, 32, 48},
                                          .resnets = 2,
                                          .depths = {1, 1, 0},
                                          .middle_depth = 1,
                                          .heads = {4, 4, 4},
                                          .norm_groups = 8}));
  const models::ModelConfig sd2 = model_of(written_by_diffusers("unet_sd2"));
  EXPECT_TRUE(sd2.learn_sigma);
  EXPECT_EQ(sd2.unet, (models::UnetConfig{.channels = {16, 32},
                                          .resnets = 1,
                                          .depths = {1, 0},
                                          .middle_depth = 1,
                                          .heads = {2, 4},
                                          .norm_groups = 8,
                                          .norm_epsilon = 1e-3,
                                          .linear_projection = true}));
}

TEST(DiffusersUnetTest, SizesAndVectorsOfSdxlAreRead) {
  const models::ModelConfig base = model_of(written_by_diffusers("unet_sdxl"));
  EXPECT_EQ(base.pooled_channels, 7);
  EXPECT_EQ(base.unet, (models::UnetConfig{.channels = {16, 32, 48},
                                           .resnets = 1,
                                           .depths = {0, 1, 2},
                                           .middle_depth = 2,
                                           .heads = {2, 4, 8},
                                           .norm_groups = 8,
                                           .linear_projection = true,
                                           .size_channels = 6}));
  // Without a pipeline around it: the refiner's vector is as wide as its text.
  json config = written_by_diffusers("unet_refiner");
  EXPECT_FALSE(model_of(config).unet.reads_score);
  config["cross_attention_dim"] = 7;
  const models::ModelConfig refiner = model_of(config);
  EXPECT_TRUE(refiner.unet.reads_score);
  EXPECT_EQ(refiner.pooled_channels, 7);
  EXPECT_EQ(refiner.unet.depths, (std::vector<int64_t>{0, 2, 0}));
  config["projection_class_embeddings_input_dim"] = 30;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return keys_of(config); }),
              HasSubstr("must leave room for a vector behind 6 numbers, got 6 and 30"));
}

// What lies beside the latents: 9 channels fill in, 8 change a picture.
TEST(DiffusersUnetTest, ChannelsSayWhatAUnetIsShown) {
  using models::ShownInput;
  for (const auto& [channels, input] :
       {std::pair{9, ShownInput::kInpaint}, std::pair{8, ShownInput::kEdit},
        std::pair{4, ShownInput::kPlain}}) {
    json config = written_by_diffusers("unet_sd1");
    config["in_channels"] = channels;
    config["out_channels"] = 4;
    const models::ModelConfig model = model_of(config);
    EXPECT_EQ(model.unet.input, input);
    EXPECT_EQ(model.in_channels, 4);
    EXPECT_FALSE(model.learn_sigma);
    const json written = json::parse(describe_unet(model));
    EXPECT_EQ(written["in_channels"], channels);
    EXPECT_EQ(written["out_channels"], 4);
    EXPECT_EQ(model_of(written).unet, model.unet);
  }
}

// The last class is the null class.
TEST(DiffusersUnetTest, ClassesThatAreAddedToTheTimeAreRead) {
  const json config = written_by_diffusers("unet_class_time");
  const models::ModelConfig model = model_of(config);
  EXPECT_FALSE(model.takes_text());
  EXPECT_EQ(model.num_classes, 5);
  EXPECT_EQ(model.unet.classes, models::UnetClasses::kTime);
  EXPECT_EQ(json::parse(describe_unet(model))["num_class_embeds"], 6);
  json sized = written_by_diffusers("unet_sdxl");
  sized["num_class_embeds"] = 6;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return keys_of(sized); }),
              HasSubstr("num_class_embeds must be null with addition_embed_type, got 6"));
}

// What is left out has the class' defaults, which are Stable Diffusion 1's but for the text.
TEST(DiffusersUnetTest, DefaultsAreTheClass) {
  models::ModelConfig published;
  published.name = "UNet-SD1";
  published.in_channels = 4;
  published.height = 64;
  published.width = 64;
  const models::ModelConfig model = model_of({{"_class_name", kUnetClass}});
  EXPECT_EQ(model.unet, models::resolved(published).unet);
  EXPECT_EQ(model.text_channels, 1280);
  EXPECT_EQ(model_of({{"sample_size", {32, 48}}}).width, 48);
}

TEST(DiffusersUnetTest, WhatIsWrittenIsReadAgain) {
  for (const char* name : {"unet_sd1", "unet_sd2", "unet_deep", "unet_sdxl", "unet_class_time"}) {
    const models::ModelConfig model = model_of(written_by_diffusers(name));
    const models::ModelConfig again = model_of(json::parse(describe_unet(model)));
    EXPECT_EQ(again.unet, model.unet) << name;
    EXPECT_EQ(again.sample_shape(), model.sample_shape()) << name;
    EXPECT_EQ(again.learn_sigma, model.learn_sigma) << name;
    EXPECT_EQ(again.text_channels, model.text_channels) << name;
    EXPECT_EQ(again.pooled_channels, model.pooled_channels) << name;
    EXPECT_EQ(again.num_classes, model.num_classes) << name;
  }
  models::ModelConfig model = model_of(written_by_diffusers("unet_deep"));
  model.unet.middle_depth = 1;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return describe_unet(model); }),
              HasSubstr("middle_depth must be that of the last level, 2, for diffusers, got 1"));
}

json plain_config(const std::string& name) {
  json config = written_by_diffusers(name);
  config["_class_name"] = kPlainUnetClass;
  return config;
}

models::ModelConfig plain_model_of(const json& config) {
  const json recipe = {{"model", json::parse(plain_unet_keys(
                                     DiffusersConfig(config.dump(), "diffusers", "config.json")))}};
  models::ModelConfig model = parse_config<models::ModelConfig>({recipe.dump(), "recipe"});
  model.time_scale = 1.0;
  return models::resolved(model);
}

// What is left out has the class' defaults, which are latent diffusion's of faces.
TEST(DiffusersPlainUnetTest, ConfigurationsOfDiffusersAreReadAndWritten) {
  const models::ModelConfig pixels = plain_model_of(plain_config("unet_pixels"));
  EXPECT_EQ(pixels.unet, (models::UnetConfig{.attends = models::UnetAttends::kPlaces,
                                             .channels = {16, 32},
                                             .resnets = 1,
                                             .depths = {1, 0},
                                             .middle_depth = 1,
                                             .heads = {1, 1},
                                             .norm_groups = 8,
                                             .norm_epsilon = 1e-6,
                                             .sines_first = true,
                                             .time_shift = 1,
                                             .pads_behind = true}));
  EXPECT_EQ(pixels.compression, 1);
  const models::ModelConfig of_classes = plain_model_of(plain_config("unet_places_class"));
  EXPECT_EQ(of_classes.num_classes, 5);
  EXPECT_TRUE(of_classes.learn_sigma);
  models::ModelConfig published;
  published.name = "ClassUNet-CelebAHQ";
  published.height = 64;
  published.width = 64;
  published.learn_sigma = false;
  json defaults = {{"sample_size", 64}, {"attention_head_dim", 32}};
  const models::ModelConfig faces = plain_model_of(defaults);
  published = models::resolved(published);
  published.unet.heads.front() = 1;  // of a level that does not attend
  EXPECT_EQ(faces.unet, published.unet);
  for (const char* name :
       {"unet_places", "unet_pixels", "unet_places_class", "unet_places_scaled"}) {
    const models::ModelConfig model = plain_model_of(plain_config(name));
    const models::ModelConfig again = plain_model_of(json::parse(describe_plain_unet(model)));
    EXPECT_EQ(again.unet, model.unet) << name;
    EXPECT_EQ(again.sample_shape(), model.sample_shape()) << name;
    EXPECT_EQ(again.learn_sigma, model.learn_sigma) << name;
    EXPECT_EQ(again.num_classes, model.num_classes) << name;
  }
  models::ModelConfig uneven = faces;
  uneven.unet.heads = {1, 1, 21, 28};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return describe_plain_unet(uneven); }),
              HasSubstr("must have as many channels, 32, for diffusers, got 448"));
}

// diffusers leaves the norm out that the middle attends behind.
TEST(DiffusersPlainUnetTest, AMiddleWithoutANormIsRefused) {
  json config = plain_config("unet_places_scaled");
  config["attn_norm_num_groups"] = nullptr;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plain_model_of(config).name; }),
              HasSubstr("attn_norm_num_groups must be 8 with resnet_time_scale_shift scale_shift"));
}

TEST(DiffusersPlainUnetTest, WhatKinoraLacksIsRefusedByName) {
  const std::vector<std::pair<const char*, json>> changes = {
      {"act_fn", "gelu"},
      {"attention_head_dim", 5},
      {"attn_norm_num_groups", 4},
      {"center_input_sample", true},
      {"class_embed_type", "timestep"},
      {"downsample_padding", 2},
      {"downsample_type", "resnet"},
      {"dropout", 0.1},
      {"mid_block_scale_factor", 2.0},
      {"mid_block_type", nullptr},
      {"num_class_embeds", 1},
      {"out_channels", 4},
      {"resnet_time_scale_shift", "spatial"},
      {"time_embedding_dim", 128},
      {"time_embedding_type", "fourier"},
      {"upsample_type", "resnet"},
      {"down_block_types", {"DownBlock2D", "ResnetDownsampleBlock2D", "DownBlock2D"}},
      {"up_block_types", {"UpBlock2D", "UpBlock2D", "UpBlock2D"}},
  };
  for (const auto& [key, value] : changes) {
    json config = plain_config("unet_places");
    config[key] = value;
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plain_model_of(config).name; }),
                HasSubstr(key))
        << value;
  }
}

// Every key that changes what is computed is read or refused.
TEST(DiffusersUnetTest, WhatKinoraLacksIsRefusedByName) {
  const std::vector<std::pair<const char*, json>> changes = {
      {"act_fn", "gelu"},
      {"addition_embed_type", "text"},
      {"attention_type", "gated"},
      {"center_input_sample", true},
      {"class_embed_type", "timestep"},
      {"class_embeddings_concat", true},
      {"conv_in_kernel", 1},
      {"conv_out_kernel", 1},
      {"cross_attention_norm", "layer_norm"},
      {"downsample_padding", 0},
      {"dropout", 0.1},
      {"dual_cross_attention", true},
      {"encoder_hid_dim", 32},
      {"encoder_hid_dim_type", "text_proj"},
      {"flip_sin_to_cos", false},
      {"freq_shift", 1},
      {"mid_block_scale_factor", 2.0},
      {"mid_block_only_cross_attention", true},
      {"mid_block_type", "UNetMidBlock2DSimpleCrossAttn"},
      {"num_attention_heads", 8},
      {"num_class_embeds", 1},
      {"only_cross_attention", true},
      {"projection_class_embeddings_input_dim", 10},
      {"resnet_out_scale_factor", 2.0},
      {"resnet_skip_time_act", true},
      {"resnet_time_scale_shift", "scale_shift"},
      {"reverse_transformer_layers_per_block", {1, 2, 3}},
      {"time_cond_proj_dim", 256},
      {"time_embedding_act_fn", "silu"},
      {"time_embedding_dim", 128},
      {"time_embedding_type", "fourier"},
      {"timestep_post_act", "silu"},
      {"down_block_types", {"DownBlock2D", "AttnDownBlock2D", "DownBlock2D"}},
      {"up_block_types", {"UpBlock2D", "UpBlock2D", "UpBlock2D"}},
      {"layers_per_block", {1, 2, 2}},
      {"cross_attention_dim", {10, 10, 20}},
      {"attention_head_dim", {4, 4}},
      {"out_channels", 3},
  };
  for (const auto& [key, value] : changes) {
    json config = written_by_diffusers("unet_sd1");
    config[key] = value;
    const std::string message = error_of(ErrorKind::kConfig, [&] { return keys_of(config); });
    EXPECT_THAT(message, HasSubstr(key));
    EXPECT_THAT(message, HasSubstr("config.json"));
  }
  json config = written_by_diffusers("unet_sd1");
  config["block_out_channels"] = "many";
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return keys_of(config); }),
              HasSubstr("block_out_channels is of another kind"));
}

}  // namespace diffusers_unet_test
}  // namespace kinora::pipelines
