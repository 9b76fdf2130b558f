// Files of VQModel, compared with CompVis' code: tools/reference/make_latent_diffusion_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "kinora/pipelines/autoencoder_config.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/autoencoder_output.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace autoencoder_vq_file_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using io::test::TemporaryFolder;
using models::AutoencoderVqConfig;
using models::formula_values;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Shapes = std::map<std::string, std::vector<int64_t>>;

fs::path data(const char* name) {
  return source_path("tests/pipelines/data") / name;
}

json tables() {
  std::ifstream in(data("vq_names.json"));
  return json::parse(in);
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

/// What CompVis' code that compvis_vq.safetensors is of has, by its keys.
models::NamedTensors compvis_weights() {
  const AutoencoderVqConfig config = {.halves = {.block_out_channels = {32, 64},
                                                 .layers_per_block = 1,
                                                 .latent_channels = 4,
                                                 .encoder_attention = {false, true},
                                                 .decoder_attention = {false, true}},
                                      .num_vq_embeddings = 40,
                                      .vq_embed_dim = 4};
  models::AutoencoderVq model(config);
  models::NamedTensors weights;
  for (const auto& [path, parameter] : model.named_parameters()) {
    std::vector<int64_t> shape = parameter->shape;
    if (models::is_kl_attention_weight(path)) {
      shape.insert(shape.end(), {1, 1});
    }
    const std::string key = models::compvis_kl_key(path, 2);
    weights[key] = models::formula_weight(key, shape);
  }
  return weights;
}

void expect_as_compvis(const fs::path& path) {
  const at::NoGradGuard no_grad;
  const WeightsFile expected = WeightsFile::open(data("compvis_vq.safetensors"));
  const auto model = open_autoencoder(path, at::kCPU, at::kFloat);
  const auto expect_near = [&](const at::Tensor& got, const char* name) {
    const at::Tensor wanted = expected.read(name);
    EXPECT_LT(((got - wanted).norm() / wanted.norm()).item<double>(), 1e-5) << name;
  };
  expect_near(model->encode(formula_values("x", {1, 3, 8, 12})).mean, "encode");
  expect_near(model->decode(formula_values("z", {1, 4, 4, 6})), "decode");
}

TEST(AutoencoderVqFileTest, PublishedNamesAndShapesAreKnown) {
  int64_t count = 0;
  const json published = tables();
  for (const auto& [name, table] : published.items()) {
    SCOPED_TRACE(name);
    const AutoencoderConfig config = parse_autoencoder_config(table["config"].dump(), name);
    const auto model = make_autoencoder(config);
    Shapes ours;
    for (const auto& [path, parameter] : model->named_parameters()) {
      ours[path] = parameter->shape;
    }
    EXPECT_EQ(ours, table["diffusers"].get<Shapes>());
    const size_t levels = halves_of(config)->block_out_channels.size();
    std::set<std::string> named;
    for (const auto& [key, shape] : table["compvis"].get<Shapes>()) {
      const std::string path = models::kl_path(key, levels);
      EXPECT_EQ(models::compvis_kl_key(path, levels), key);
      ASSERT_TRUE(ours.contains(path)) << key << " became " << path;
      EXPECT_EQ(numel(ours[path]), numel(shape)) << key;
      EXPECT_EQ(models::is_kl_attention_weight(path), ours[path].size() < shape.size()) << key;
      named.insert(path);
    }
    EXPECT_EQ(named.size(), ours.size());
    ++count;
  }
  EXPECT_EQ(count, 5);
}

TEST(AutoencoderVqFileTest, FilesOfCompVisMakeWhatItsCodeDoes) {
  const TemporaryFolder folder;
  models::NamedTensors weights = compvis_weights();
  models::write_tensors(folder / "first.safetensors", weights);
  expect_as_compvis(folder / "first.safetensors");
  EXPECT_TRUE(is_autoencoder(folder / "first.safetensors"));
  const models::LatentSpace space = latent_space(folder / "first.safetensors");
  EXPECT_EQ(space.channels, 4);
  EXPECT_EQ(space.compression, 2);
  EXPECT_EQ(space.scale, std::vector<double>{1.0});

  models::NamedTensors checkpoint = {
      {"model.diffusion_model.out.2.bias", formula_values("b", {3})},
      {"cond_stage_model.embedding.weight", formula_values("c", {2, 4})}};
  for (const auto& [key, value] : weights) {
    checkpoint["first_stage_model." + key] = value;
  }
  models::write_tensors(folder / "whole.safetensors", checkpoint);
  expect_as_compvis(folder / "whole.safetensors");
  EXPECT_EQ(fingerprint(folder / "whole.safetensors"), fingerprint(folder / "first.safetensors"));
}

TEST(AutoencoderVqFileTest, CompVisToDiffusersToCompVisKeepsEveryBit) {
  const TemporaryFolder folder;
  const models::NamedTensors weights = compvis_weights();
  models::write_tensors(folder / "first.safetensors", weights);
  EXPECT_EQ(write_autoencoder(folder / "first.safetensors", folder / "vae", {}),
            std::ssize(weights));
  EXPECT_TRUE(is_autoencoder(folder / "vae"));
  expect_as_compvis(folder / "vae");
  const json config = json::parse(io::read_text(folder / "vae/config.json", 1 << 20));
  EXPECT_EQ(config["_class_name"], "VQModel");
  EXPECT_EQ(config["down_block_types"], (json{"DownEncoderBlock2D", "AttnDownEncoderBlock2D"}));
  EXPECT_EQ(config["up_block_types"], (json{"AttnUpDecoderBlock2D", "UpDecoderBlock2D"}));
  EXPECT_EQ(config["num_vq_embeddings"], 40);
  EXPECT_EQ(config["scaling_factor"], 1.0);
  write_compvis_autoencoder(folder / "vae", folder / "again.safetensors", {});
  const WeightsFile again = WeightsFile::open(folder / "again.safetensors");
  EXPECT_EQ(again.names().size(), weights.size());
  for (const auto& [key, value] : weights) {
    ASSERT_TRUE(again.contains(key)) << key;
    EXPECT_TRUE(at::equal(again.read(key), value)) << key;
  }
  // A pipeline of latent diffusion has it in vqvae/.
  fs::create_directories(folder / "pipeline");
  fs::rename(folder / "vae", folder / "pipeline/vqvae");
  expect_as_compvis(folder / "pipeline");
}

AutoencoderConfig parsed(const json& changes) {
  json config = {{"_class_name", "VQModel"}};
  config.update(changes);
  return parse_autoencoder_config(config.dump(), "config.json");
}

TEST(AutoencoderVqFileTest, ConfigsAreReadAsDiffusersDoes) {
  const auto vq = [](const json& changes) {
    return std::get<AutoencoderVqConfig>(parsed(changes).model);
  };
  const AutoencoderVqConfig plain = vq(json::object());
  EXPECT_EQ(plain.halves.block_out_channels, std::vector<int64_t>{64});
  EXPECT_EQ(plain.halves.layers_per_block, 1);
  EXPECT_EQ(plain.halves.latent_channels, 3);
  EXPECT_EQ(plain.num_vq_embeddings, 256);
  EXPECT_EQ(plain.vq_embed_dim, 3);
  // As it was published before the key was there, when nothing was scaled.
  EXPECT_EQ(plain.halves.scale, std::vector<double>{1.0});
  EXPECT_EQ(vq({{"scaling_factor", 0.18215}}).halves.scale, std::vector<double>{0.18215});
  EXPECT_EQ(vq({{"latent_channels", 64}, {"vq_embed_dim", nullptr}}).vq_embed_dim, 64);
  EXPECT_EQ(vq({{"latent_channels", 64}, {"vq_embed_dim", 5}}).vq_embed_dim, 5);
  EXPECT_FALSE(vq({{"mid_block_add_attention", false}}).halves.mid_block_add_attention);
  EXPECT_FALSE(parsed(json::object()).force_upcast);
  EXPECT_TRUE(parsed({{"force_upcast", true}}).force_upcast);
  EXPECT_EQ(make_autoencoder(parsed({{"in_channels", 1}, {"out_channels", 1}}))->space().channels,
            3);
}

TEST(AutoencoderVqFileTest, WhatKinoraLacksIsNamed) {
  const auto refused = [](const json& changes, ErrorKind kind = ErrorKind::kConfig) {
    return error_of(kind, [&] { return make_autoencoder(parsed(changes)); });
  };
  EXPECT_THAT(refused({{"norm_type", "spatial"}}),
              HasSubstr("norm_type must be group, got \"spatial\""));
  EXPECT_THAT(refused({{"act_fn", "relu"}}), HasSubstr("act_fn must be silu, got \"relu\""));
  EXPECT_THAT(refused({{"down_block_types", {"DownBlock2D"}}}),
              AllOf(HasSubstr("down_block_types must be DownEncoderBlock2D or "),
                    HasSubstr("got DownBlock2D")));
  EXPECT_THAT(refused({{"up_block_types", {"UpDecoderBlock2D", "UpDecoderBlock2D"}}}),
              HasSubstr("up_block_types must have 1 entries"));
  EXPECT_THAT(refused({{"in_channels", 6}, {"out_channels", 6}}), HasSubstr("got 6"));
  EXPECT_THAT(refused({{"out_channels", 1}}),
              HasSubstr("out_channels must be in_channels, 3, got 1"));
  EXPECT_THAT(refused({{"num_vq_embeddings", -1}}), HasSubstr("num_vq_embeddings must be from 1"));
  EXPECT_THAT(refused({{"num_vq_embeddings", int64_t{1} << 40}}), HasSubstr("got 1099511627776"));
  EXPECT_THAT(refused({{"vq_embed_dim", "3"}}, ErrorKind::kIo), HasSubstr("vq_embed_dim"));
  EXPECT_THAT(refused({{"layers_per_block", 1000000000}}), HasSubstr("from 1 to 64"));
  EXPECT_THAT(refused({{"block_out_channels", {64, -64}}}), HasSubstr("got [64,-64]"));
  EXPECT_THAT(refused({{"block_out_channels", std::vector<int64_t>(100, 1)}}),
              HasSubstr("up to 16 numbers"));
  EXPECT_THAT(refused({{"norm_num_groups", 0}}), HasSubstr("norm_num_groups must be from 1"));
}

TEST(AutoencoderVqFileTest, ACodebookOfAnotherWidthIsNamedWithBothNumbers) {
  const TemporaryFolder folder;
  const auto refused = [](const fs::path& path) {
    return error_of(ErrorKind::kIo, [&] { return open_autoencoder(path, at::kCPU, at::kFloat); });
  };
  models::NamedTensors weights = compvis_weights();
  models::write_tensors(folder / "good.safetensors", weights);
  write_autoencoder(folder / "good.safetensors", folder / "vae", {});
  weights[kCodebook] = formula_values("codes", {40, 5});
  models::write_tensors(folder / "first.safetensors", weights);
  EXPECT_THAT(refused(folder / "first.safetensors"),
              HasSubstr("codes of quantize.embedding.weight must have 4 numbers, as "
                        "quant_conv.weight makes, got 5"));
  weights[kCodebook] = formula_values("codes", {40});
  models::write_tensors(folder / "first.safetensors", weights);
  EXPECT_THAT(refused(folder / "first.safetensors"), HasSubstr("got 1 dims"));
  json config = json::parse(io::read_text(folder / "vae/config.json", 1 << 20));
  config["vq_embed_dim"] = 5;
  io::write_file_atomic(folder / "vae/config.json", config.dump());
  EXPECT_THAT(refused(folder / "vae"),
              HasSubstr("quantize.embedding.weight (must be [40, 5], is [40, 4])"));
  // What a quantiser remaps by (taming's `remap`).
  weights = compvis_weights();
  weights["quantize.used"] = formula_values("used", {8});
  weights.erase("post_quant_conv.bias");
  models::write_tensors(folder / "first.safetensors", weights);
  EXPECT_THAT(refused(folder / "first.safetensors"),
              AllOf(HasSubstr("1 unexpected [quantize.used]"),
                    HasSubstr("1 missing [post_quant_conv.bias]")));
  weights = compvis_weights();
  weights.erase("quant_conv.weight");
  models::write_tensors(folder / "first.safetensors", weights);
  EXPECT_THAT(refused(folder / "first.safetensors"), HasSubstr("has no quant_conv.weight"));
}

}  // namespace autoencoder_vq_file_test
}  // namespace kinora::pipelines
