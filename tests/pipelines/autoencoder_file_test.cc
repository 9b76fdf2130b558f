#include "kinora/pipelines/autoencoder_file.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "kinora/data/class_tar.h"
#include "kinora/io/file.h"
#include "kinora/io/image_resize.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/models/autoencoders/autoencoder_tiny.h"
#include "kinora/pipelines/autoencoder_output.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace autoencoder_file_test {

namespace fs = std::filesystem;
using io::test::TemporaryFolder;
using models::formula_values;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kConfig =
    R"({"_class_name": "AutoencoderKL", "block_out_channels": [32, 32], "layers_per_block": 1,
        "latent_channels": 4, "norm_num_groups": 32, "scaling_factor": 0.18215})";

using Weights = models::NamedTensors;
using Rename = std::function<std::string(std::string)>;

models::AutoencoderKlConfig small_config() {
  return {.block_out_channels = {32, 32}, .layers_per_block = 1};
}

Weights kl_weights() {
  models::AutoencoderKl model(small_config());
  return models::formula_weights(model);
}

void write(
    const fs::path& path, const Weights& weights,
    const Rename& rename = [](std::string path) { return path; }) {
  Weights renamed;
  for (const auto& [name, value] : weights) {
    renamed[rename(name)] = value;
  }
  models::write_tensors(path, renamed);
}

void write_folder(const fs::path& folder, const Weights& weights, const char* config = kConfig) {
  fs::create_directories(folder);
  io::write_file_atomic(folder / "config.json", std::string_view(config));
  write(folder / "diffusion_pytorch_model.safetensors", weights);
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
}

/// The key that CompVis' code has for a path of a model with two levels.
std::string compvis_key(std::string path) {
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"mid_block.resnets.0", "mid.block_1"},
                                                        {"mid_block.resnets.1", "mid.block_2"},
                                                        {"mid_block.attentions.0", "mid.attn_1"},
                                                        {"group_norm", "norm"},
                                                        {"to_q", "q"},
                                                        {"to_k", "k"},
                                                        {"to_v", "v"},
                                                        {"to_out.0", "proj_out"},
                                                        {"down_blocks", "down"},
                                                        {"up_blocks.0", "up.1"},
                                                        {"up_blocks.1", "up.0"},
                                                        {"resnets", "block"},
                                                        {"downsamplers.0", "downsample"},
                                                        {"upsamplers.0", "upsample"},
                                                        {"conv_shortcut", "nin_shortcut"},
                                                        {"conv_norm_out", "norm_out"}}) {
    replace(path, from, to);
  }
  return path;
}

at::Tensor decoded(const fs::path& path) {
  const at::NoGradGuard no_grad;
  return open_autoencoder(path, at::kCPU, at::kFloat)->decode(formula_values("z", {1, 4, 4, 6}));
}

TEST(AutoencoderFileTest, AllFormsBecomeTheSameFolderOfDiffusers) {
  const TemporaryFolder folder;
  const Weights weights = kl_weights();
  write_folder(folder / "vae", weights);
  write(folder / "compvis.safetensors", weights, compvis_key);
  EXPECT_TRUE(is_autoencoder(folder / "vae"));
  EXPECT_TRUE(is_autoencoder(folder / "compvis.safetensors"));
  write(folder / "other.safetensors", {{"blocks.0.mlp.fc1.bias", at::zeros({2})}});
  EXPECT_FALSE(is_autoencoder(folder / "other.safetensors"));
  for (const char* from : {"vae", "compvis.safetensors"}) {
    const fs::path out = folder / ("of-" + std::string(from));
    EXPECT_EQ(write_autoencoder(folder / from, out, {}), static_cast<int64_t>(weights.size()));
    EXPECT_EQ(fingerprint(out), fingerprint(folder / "vae"));
    EXPECT_EQ(io::read_text(out / "diffusion_pytorch_model.safetensors", 1 << 22).size(),
              io::read_text(folder / "vae/diffusion_pytorch_model.safetensors", 1 << 22).size());
  }
  EXPECT_EQ(io::read_text(folder / "of-vae/config.json", 1 << 20), kConfig);
}

TEST(AutoencoderFileTest, AllFormsOfOneAreTheSame) {
  const TemporaryFolder folder;
  const Weights weights = kl_weights();
  write_folder(folder / "vae", weights);
  models::AutoencoderKl model(small_config());
  models::set_formula_weights(model);
  const at::Tensor expected = model.decode(formula_values("z", {1, 4, 4, 6})).detach();
  EXPECT_TRUE(at::equal(decoded(folder / "vae"), expected));
  EXPECT_TRUE(at::equal(decoded(folder.path()), expected));  // of a pipeline
  EXPECT_EQ(fingerprint(folder.path()), fingerprint(folder / "vae"));

  write(folder / "compvis.safetensors", weights, compvis_key);
  EXPECT_TRUE(at::equal(decoded(folder / "compvis.safetensors"), expected));
  EXPECT_EQ(fingerprint(folder / "compvis.safetensors"), fingerprint(folder.path()));

  Weights checkpoint = weights;
  checkpoint["model.diffusion_model.out.2.bias"] = formula_values("b", {3});
  write(folder / "checkpoint.safetensors", checkpoint, [](const std::string& path) {
    return path.starts_with("model.") ? path : "first_stage_model." + compvis_key(path);
  });
  EXPECT_TRUE(at::equal(decoded(folder / "checkpoint.safetensors"), expected));

  write(folder / "old.safetensors", weights, [](std::string path) {
    replace(path, "to_q", "query");
    replace(path, "to_k", "key");
    replace(path, "to_v", "value");
    replace(path, "to_out.0", "proj_attn");
    return path;
  });
  EXPECT_TRUE(at::equal(decoded(folder / "old.safetensors"), expected));
}

TEST(AutoencoderFileTest, BytesAreThoseOfTheOpenedOne) {
  const TemporaryFolder folder;
  write_folder(folder / "vae", kl_weights());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto model = open_autoencoder(folder / "vae", at::kCPU, type);
    size_t bytes = 0;
    for (const auto& [name, parameter] : model->named_parameters()) {
      bytes += parameter->value.nbytes();
    }
    EXPECT_EQ(autoencoder_bytes(folder / "vae", type), bytes) << at::toString(type);
  }
}

TEST(AutoencoderFileTest, FingerprintsNameWeightsAndScaling) {
  const TemporaryFolder folder;
  Weights weights = kl_weights();
  write_folder(folder / "a", weights);
  std::string config = kConfig;
  replace(config, "0.18215", "0.13025");
  write_folder(folder / "b", weights, config.c_str());
  weights["decoder.conv_out.bias"] = weights["decoder.conv_out.bias"] * 2.0;
  write_folder(folder / "c", weights);
  EXPECT_NE(fingerprint(folder / "a"), fingerprint(folder / "b"));
  EXPECT_NE(fingerprint(folder / "a"), fingerprint(folder / "c"));
}

// Keys of the published files of Stable Diffusion 1.5 and diffusers' names of the same tensors.
TEST(AutoencoderFileTest, PublishedKeysAreKnown) {
  const auto path = [](const char* key) { return models::kl_path(key, 4); };
  EXPECT_EQ(path("encoder.down.1.block.0.nin_shortcut.weight"),
            "encoder.down_blocks.1.resnets.0.conv_shortcut.weight");
  EXPECT_EQ(path("encoder.down.2.downsample.conv.bias"),
            "encoder.down_blocks.2.downsamplers.0.conv.bias");
  EXPECT_EQ(path("decoder.up.0.block.2.norm1.weight"),
            "decoder.up_blocks.3.resnets.2.norm1.weight");
  EXPECT_EQ(path("decoder.up.3.upsample.conv.weight"),
            "decoder.up_blocks.0.upsamplers.0.conv.weight");
  EXPECT_EQ(path("decoder.mid.attn_1.proj_out.weight"),
            "decoder.mid_block.attentions.0.to_out.0.weight");
  EXPECT_EQ(path("decoder.mid.block_2.conv2.bias"), "decoder.mid_block.resnets.1.conv2.bias");
  EXPECT_EQ(path("decoder.norm_out.bias"), "decoder.conv_norm_out.bias");
  EXPECT_EQ(path("post_quant_conv.weight"), "post_quant_conv.weight");
  EXPECT_EQ(models::tiny_path("3.conv.0.weight", true), "decoder.layers.2.conv.0.weight");
  EXPECT_EQ(models::tiny_path("3.conv.0.weight", false), "encoder.layers.3.conv.0.weight");
}

TEST(AutoencoderFileTest, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  Weights weights = kl_weights();
  weights.erase("decoder.conv_out.bias");
  weights["decoder.more"] = formula_values("more", {1});
  weights["quant_conv.bias"] = formula_values("bias", {3});
  write_folder(folder / "vae", weights);
  const auto refused = [](ErrorKind kind, const fs::path& path) {
    return error_of(kind, [&] { return open_autoencoder(path, at::kCPU, at::kFloat); });
  };
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "vae"),
              AllOf(HasSubstr("1 missing [decoder.conv_out.bias]"),
                    HasSubstr("1 unexpected [decoder.more]"),
                    HasSubstr("quant_conv.bias (must be [8], is [3])")));
  write_folder(folder / "other", weights, R"({"_class_name": "AsymmetricAutoencoderKL"})");
  EXPECT_THAT(refused(ErrorKind::kConfig, folder / "other"),
              HasSubstr("got AsymmetricAutoencoderKL"));
  write_folder(folder / "blocks", weights,
               R"({"_class_name": "AutoencoderKL", "down_block_types": ["AttnDownBlock2D"]})");
  EXPECT_THAT(refused(ErrorKind::kConfig, folder / "blocks"), HasSubstr("AttnDownBlock2D"));
  write_folder(folder / "torn", weights, "{");
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "torn"), HasSubstr("is not a JSON object"));
  write_folder(folder / "kinds", weights,
               R"({"_class_name": "AutoencoderKL", "layers_per_block": "two"})");
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "kinds"), HasSubstr("layers_per_block"));
  fs::create_directories(folder / "empty");
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "empty"), HasSubstr("neither config.json"));
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "none"), HasSubstr("does not exist"));
  write(folder / "x_encoder.safetensors", weights);
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "x_encoder.safetensors"),
              HasSubstr("x_decoder.safetensors"));
  Weights twice = kl_weights();
  twice["encoder.norm_out.weight"] = twice["encoder.conv_norm_out.weight"];
  write_folder(folder / "twice", twice);
  EXPECT_THAT(refused(ErrorKind::kIo, folder / "twice"), HasSubstr("twice"));
}

fs::path real_data(const char* name) {
  const char* folder = std::getenv("KINORA_DATA");
  return (folder != nullptr ? fs::path(folder) : source_path("../shared/data")) / name;
}

TEST(AutoencoderFileTest, Taef2KeepsPhotos) {
  const fs::path weights = real_data("weights/taef2");
  const fs::path photos = real_data("clothing/train.tar");
  if (!fs::exists(weights) || !fs::exists(photos)) {
    GTEST_SKIP() << "no real data: " << weights << " or " << photos << " is absent";
  }
  const at::NoGradGuard no_grad;
  const auto model = open_autoencoder(weights, at::kCPU, at::kFloat);
  EXPECT_EQ(model->space().channels, 32);
  EXPECT_EQ(model->space().compression, 8);
  const data::ClassTar source({photos});
  constexpr int64_t kPhotos = 4;
  constexpr int64_t kSide = 256;
  data::Sample sample;
  double sum = 0.0;
  for (int64_t i = 0; i < kPhotos; ++i) {
    source.read(i * source.size() / kPhotos, sample);
    const io::Image photo = io::center_crop(sample.image, kSide, kSide);
    const at::Tensor pixels =
        (at::tensor(photo.pixels, at::kByte).view({1, kSide, kSide, 3}).permute({0, 3, 1, 2}) /
         127.5) -
        1.0;
    const at::Tensor again = model->decode(model->encode(pixels).mean).clamp(-1.0, 1.0);
    const double error = (again - pixels).square().mean().item<double>();
    sum += 10.0 * std::log10(4.0 / error);  // of values 2 apart at most
  }
  const double psnr = sum / kPhotos;
  RecordProperty("psnr", std::to_string(psnr));
  std::cout << "TAEF2 round trip: PSNR " << psnr << " dB over " << kPhotos << " photos\n";
  // FLUX.2's own autoencoder is near 30 dB and more; a wrong layer, order or range gives below 20.
  EXPECT_GT(psnr, 26.0);
}

}  // namespace autoencoder_file_test
}  // namespace kinora::pipelines
