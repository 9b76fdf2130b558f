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
  models::OpenSoraCausalVae causal({});
  models::VideoDcAe dc_ae({});
  models::WanVae wan({});
  models::CogVideoXVae cogvideox({});
  for (models::ClipAutoencoder* const model : std::initializer_list<models::ClipAutoencoder*>{
           &hunyuan, &opensora, &causal, &dc_ae, &wan, &cogvideox}) {
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
  EXPECT_EQ(num_parameters(models::OpenSoraCausalVaeConfig{}), 259'163'811);
  EXPECT_EQ(num_parameters(models::VideoDcAeConfig{}), 459'462'147);
  EXPECT_EQ(num_parameters(models::WanVaeConfig{}), 126'892'531);
  EXPECT_EQ(num_parameters(models::CogVideoXVaeConfig{}), 215'583'907);
  // 2.2's TI2V.
  EXPECT_EQ(num_parameters(models::WanVaeConfig{.base_dim = 160,
                                                .decoder_base_dim = 256,
                                                .is_residual = true,
                                                .patch_size = 2,
                                                .z_dim = 48,
                                                .latents_mean = std::vector<double>(48, 0.0),
                                                .latents_std = std::vector<double>(48, 1.0)}),
            704'688'668);
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

// As OpenSoraVAE_V1_3_Pipline writes it.
constexpr const char* kCausalConfig =
    R"({"model_type": "OpenSoraVAE_V1_3_Pipline",
        "encoder": {"type": "VideoEncoder", "double_z": true, "z_channels": 16, "in_channels": 3,
                    "out_ch": 3, "ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2,
                    "down_sampling_layer": [1, 2], "micro_batch_size_2d": 4},
        "decoder": {"type": "VideoDecoder", "z_channels": 16, "in_channels": 3, "out_ch": 3,
                    "ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2,
                    "temporal_up_layers": [2, 3], "micro_batch_size_2d": 4}})";
constexpr const char* kCausalName = "encoder.down.0.block.0.conv1.conv.weight";

TEST(ClipAutoencoderConfigTest, TheCausalOneOfOpenSoraIsTwoHalves) {
  const auto published = clip_autoencoder_config(kCausalConfig, {kCausalName});
  EXPECT_EQ(describe(published.value()), describe(models::OpenSoraCausalVaeConfig{}));
  const models::LatentSpace space = make_autoencoder(*published)->space();
  EXPECT_EQ(space.channels, 16);
  EXPECT_EQ(space.compression, 8);
  EXPECT_EQ(space.frame_compression, 4);
  EXPECT_EQ(models::latent_frames(space, 113), 35);
  EXPECT_DOUBLE_EQ(space.scale[0], 1.0 / 0.9490776062011719);
  EXPECT_DOUBLE_EQ(space.shift[15], -0.023072388023138046);

  const auto message = [](const std::string& of, const std::string& by) {
    std::string config = kCausalConfig;
    config.replace(config.find(of), of.size(), by);
    return error_of(ErrorKind::kConfig,
                    [&] { (void)clip_autoencoder_config(config, {kCausalName}); });
  };
  EXPECT_NE(message("VideoEncoder", "ImageEncoder")
                .find(R"(type must be "VideoEncoder" in config.json, got "ImageEncoder")"),
            std::string::npos);
  EXPECT_NE(message("[1, 2],", "[1, 3],").find("down_sampling_layer must lie in 0 to 2"),
            std::string::npos);
  EXPECT_NE(message("[2, 3]", "[1, 2]").find("temporal_up_layers must be [2,3] in config.json"),
            std::string::npos);
  EXPECT_NE(message("[1, 2, 4, 4]", "[]").find("ch_mult must have 1 to 16 factors"),
            std::string::npos);
  EXPECT_NE(message("[1, 2, 4, 4]", "[1, 2, 4]")
                .find("ch_mult must be [1,2,4] in config.json, got [1,2,4,4]"),
            std::string::npos);
  EXPECT_NE(message("\"ch\": 128", "\"ch\": -128").find("ch must be from 1 to 65536"),
            std::string::npos);
}

TEST(ClipAutoencoderConfigTest, DescriptionsTellModelsApart) {
  models::OpenSoraCausalVaeConfig shifted;
  shifted.shift[3] = 0.0;
  EXPECT_NE(describe(models::OpenSoraCausalVaeConfig{}), describe(shifted));
  models::OpenSoraVaeConfig other;
  other.micro_frame_size = 9;
  EXPECT_NE(describe(models::OpenSoraVaeConfig{}), describe(other));
  EXPECT_NE(describe(models::HunyuanVaeConfig{}), describe(models::VideoDcAeConfig{}));
  models::WanVaeConfig centred;
  centred.latents_mean[0] = 0.0;
  EXPECT_NE(describe(models::WanVaeConfig{}), describe(centred));
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
  EXPECT_EQ(clip_autoencoder_path("decoder.upsamples.7.time_conv.weight"),
            "decoder.up_blocks.1.upsamplers.0.time_conv.weight");
}

}  // namespace clip_autoencoder_config_test
}  // namespace kinora::pipelines
