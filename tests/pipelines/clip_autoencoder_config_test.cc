#include "kinora/pipelines/clip_autoencoder_config.h"

#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora::pipelines {
namespace clip_autoencoder_config_test {

std::vector<std::string> names_of(nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& [path, parameter] : model.named_parameters()) {
    names.push_back(path);
  }
  return names;
}

std::unique_ptr<models::Autoencoder> made(const std::string& config,
                                          const std::vector<std::string>& names) {
  return make_autoencoder(clip_autoencoder_config(config, names).value());
}

TEST(ClipAutoencoderConfigTest, KindsAreToldByTheirNames) {
  models::HunyuanVae hunyuan({});
  models::OpenSoraVae opensora({});
  models::VideoDcAe dc_ae({});
  for (models::ClipAutoencoder* const model :
       std::initializer_list<models::ClipAutoencoder*>{&hunyuan, &opensora, &dc_ae}) {
    const std::vector<std::string> names = names_of(*model);
    const auto config = clip_autoencoder_config("", names);
    ASSERT_TRUE(config) << names[0];
    const auto made = make_autoencoder(*config);
    EXPECT_EQ(names_of(*made), names);
    EXPECT_EQ(made->space().channels, model->space().channels);
  }
  EXPECT_FALSE(clip_autoencoder_config("", {"encoder.conv_in.weight"}));  // of images
}

TEST(ClipAutoencoderConfigTest, SizesOfThePublishedModels) {
  const auto num_parameters = [](const ClipAutoencoderConfig& config) {
    const auto model = make_autoencoder(config);
    int64_t count = 0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      count += parameter->numel();
    }
    return count;
  };
  // Counted in diffusers' and the originals' code.
  EXPECT_EQ(num_parameters(models::HunyuanVaeConfig{}), 246'478'803);
  EXPECT_EQ(num_parameters(models::OpenSoraVaeConfig{}), 83'653'863 + 309'687'144);
  EXPECT_EQ(num_parameters(models::VideoDcAeConfig{}), 459'462'147);
  const models::OpenSoraVae opensora({});
  const models::LatentSpace& space = opensora.space();
  EXPECT_EQ(space.channels, 4);
  EXPECT_EQ(space.compression, 8);
  EXPECT_EQ(space.frame_compression, 4);
  EXPECT_DOUBLE_EQ(space.scale[0], 1.0 / 3.85);
  EXPECT_EQ(models::latent_frames(space, 51), 15);
}

TEST(ClipAutoencoderConfigTest, ConfigsAreRead) {
  const std::vector<std::string> hunyuan = {"vae.encoder.conv_in.conv.weight"};
  const auto model = made(R"({"_class_name": "AutoencoderKLCausal3D",
      "latent_channels": 8, "block_out_channels": [32, 64], "time_compression_ratio": 2,
      "spatial_compression_ratio": 2, "scaling_factor": 0.25})",
                          hunyuan);
  EXPECT_EQ(model->space().channels, 8);
  EXPECT_EQ(model->space().frame_compression, 2);
  EXPECT_EQ(model->space().scale, std::vector<double>{0.25});
  const auto opensora = made(R"({"micro_frame_size": 9, "shift": [0, 0, 0, 1],
      "scale": [1, 2, 4, 8], "vae_temporal": {"type": "VAE_Temporal_SD"}})",
                             {"temporal_vae.encoder.conv_in.conv.weight"});
  EXPECT_EQ(opensora->space().chunk_frames, 9);
  EXPECT_EQ(opensora->space().scale, (std::vector<double>{1.0, 0.5, 0.25, 0.125}));
}

TEST(ClipAutoencoderConfigTest, DescriptionsTellModelsApart) {
  models::OpenSoraVaeConfig other;
  other.micro_frame_size = 9;
  EXPECT_NE(describe(models::OpenSoraVaeConfig{}), describe(other));
  EXPECT_NE(describe(models::HunyuanVaeConfig{}), describe(models::VideoDcAeConfig{}));
}

TEST(ClipAutoencoderConfigTest, WhatIsNotThereIsNamed) {
  const auto message = [](const std::string& config, ErrorKind kind = ErrorKind::kConfig) {
    return error_of(
        kind, [&] { (void)clip_autoencoder_config(config, {"encoder.conv_in.conv.weight"}); });
  };
  EXPECT_NE(
      message(R"({"act_fn": "gelu"})").find(R"(act_fn must be "silu" in config.json, got "gelu")"),
      std::string::npos);
  EXPECT_NE(message(R"({"layers_per_block": "two"})").find("wrong kind under layers_per_block"),
            std::string::npos);
  EXPECT_NE(message("[]", ErrorKind::kIo).find("is not a JSON object"), std::string::npos);
}

TEST(ClipAutoencoderConfigTest, NamesOfFiles) {
  EXPECT_EQ(clip_autoencoder_path("vae.encoder.conv_in.conv.weight"),
            "encoder.conv_in.conv.weight");
  EXPECT_EQ(clip_autoencoder_path("temporal_vae.decoder.conv1.conv.bias"),
            "temporal_vae.decoder.conv1.conv.bias");
  EXPECT_EQ(clip_autoencoder_path("scale"), "");
}

}  // namespace clip_autoencoder_config_test
}  // namespace kinora::pipelines
