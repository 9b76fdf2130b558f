#include "kinora/checkpoint/weights_file.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/transformers/dit.h"
#include "tests/checkpoint/testing.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::checkpoint {
namespace weights_file_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor ramp(at::IntArrayRef shape, double start) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape) * 0.25 + start;
}

Tensors small_weights() {
  return {{"first.weight", ramp({6, 4}, 1)},
          {"first.bias", ramp({6}, 2)},
          {"second.weight", ramp({2, 6}, 3)},
          {"second.bias", ramp({2}, 4)},
          {"table", ramp({1, 3}, 5)}};
}

struct Small {
  explicit Small(bool train = true) {
    model.table = ramp({1, 3}, -1);
    arena.emplace(
        model.named_parameters(), SmallModel::buckets(),
        optim::ArenaOptions{.device = at::kCPU,
                            .compute_type = at::kBFloat16,
                            .seed = 1,
                            .train = train,
                            .ema_decays = train ? std::vector<double>{0.9} : std::vector<double>{},
                            .sharding = {}});
  }

  SmallModel model;
  std::optional<optim::Arena> arena;
};

class WeightsFileTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const Tensors& tensors,
                 const std::map<std::string, std::string>& metadata = {}) const {
    std::vector<io::SafetensorsTensor> entries;
    for (const auto& [key, tensor] : tensors) {
      entries.push_back({.name = key,
                         .dtype = device::dtype_of(tensor.scalar_type()),
                         .shape = tensor.sizes().vec(),
                         .data = device::bytes_of(tensor)});
    }
    io::write_safetensors(folder_.path() / name, entries, metadata);
    return folder_.path() / name;
  }

  TemporaryFolder folder_;
};

TEST_F(WeightsFileTest, AnIndexNamesFilesOfItsFolderAlone) {
  fs::create_directories(folder_.path() / "model");
  const fs::path outside = write("outside.safetensors", {{"a", at::zeros({2})}});
  const fs::path index = folder_.path() / "model/model.safetensors.index.json";
  const auto refusal = [&](const std::string& text) {
    io::write_file_atomic(index, text);
    return error_of(ErrorKind::kIo, [&] { return WeightsFile::open(folder_.path() / "model"); });
  };
  const auto naming = [](const std::string& shard) {
    return nlohmann::json{{"weight_map", {{"a", shard}}}}.dump();
  };
  for (const std::string& shard : {std::string("../outside.safetensors"), outside.string(),
                                   std::string("x/../y"), std::string("..\\outside.safetensors"),
                                   std::string("a\0b", 3), std::string(".."), std::string(".")}) {
    EXPECT_THAT(refusal(naming(shard)), HasSubstr("must name files beside it, got")) << shard;
  }
  EXPECT_THAT(refusal(naming("other.safetensors")), HasSubstr("which is not beside it"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": 3}})"), HasSubstr("must be text"));
  EXPECT_THAT(refusal(std::string(200'000, '[')), HasSubstr("a JSON object with a weight_map"));
  EXPECT_THAT(refusal(R"({"weight_map": )" + std::string(200'000, '[')),
              HasSubstr("a JSON object with a weight_map"));
}

// tools/reference/make_gguf_fixtures.py
TEST_F(WeightsFileTest, GgufIsReadAsWhatItsBlocksStandFor) {
  const auto file = WeightsFile::open(source_path("tests/io/data/types.gguf"));
  const auto want = WeightsFile::open(source_path("tests/io/data/types.safetensors"));
  ASSERT_EQ(file.names(), want.names());
  for (const auto& [name, tensor] : file.tensors()) {
    const at::Tensor values = tensor.read_all();
    EXPECT_EQ(values.scalar_type(), tensor.type);
    EXPECT_TRUE(at::equal(values.to(at::kFloat), want.read(name))) << name;
    EXPECT_TRUE(at::equal(tensor.read(1, 2).to(at::kFloat), want.read(name).narrow(0, 1, 1)));
  }
  EXPECT_EQ(file.read("f16.weight").scalar_type(), at::kHalf);
}

TEST_F(WeightsFileTest, GgufOfComfyHasTheNamesOfCompvis) {
  const auto file = WeightsFile::open(source_path("tests/io/data/comfy.gguf"));
  EXPECT_EQ(file.names(),
            (std::vector<std::string>{"model.diffusion_model.input_blocks.0.0.bias",
                                      "model.diffusion_model.input_blocks.0.0.weight"}));
  EXPECT_EQ(file.shape("model.diffusion_model.input_blocks.0.0.weight"),
            (std::vector<int64_t>{1, 4, 3, 3}));
}

TEST_F(WeightsFileTest, LoadsByNameIntoMasterComputeAverageAndBuffer) {
  const Tensors weights = small_weights();
  const auto file = WeightsFile::open(write("w.safetensors", weights));
  Small small;
  load_weights(file, small.model, *small.arena);
  for (const auto& [name, parameter] : small.model.named_parameters()) {
    const at::Tensor& expected = weights.at(name);
    EXPECT_TRUE(at::equal(small.arena->export_parameter(name, optim::Role::master()), expected));
    EXPECT_TRUE(at::equal(small.arena->export_parameter(name, optim::Role::average(0)), expected));
    EXPECT_TRUE(at::equal(parameter->value.detach(), expected.to(parameter->value.scalar_type())));
  }
  EXPECT_TRUE(at::equal(small.model.table, weights.at("table")));
}

TEST_F(WeightsFileTest, ValuesThatAreNotFiniteAreNamed) {
  for (const auto& [name, wrong] : std::map<std::string, double>{
           {"first.weight", std::nan("")}, {"second.bias", HUGE_VAL}, {"table", -HUGE_VAL}}) {
    for (const bool train : {false, true}) {
      Tensors weights = small_weights();
      weights.at(name).flatten()[1] = wrong;
      Small small(train);
      const auto file = WeightsFile::open(write("w.safetensors", weights));
      EXPECT_THAT(refusal(ErrorKind::kIo, [&] { load_weights(file, small.model, *small.arena); }),
                  testing::AllOf(HasSubstr("w.safetensors: tensor " + name + " holds 1 value"),
                                 HasSubstr("(first at 1)")));
    }
  }
}

// 1e39 is a number in the file, but none as fp32.
TEST_F(WeightsFileTest, ValuesThatOverflowTheTypeOfTheModelAreNamed) {
  Tensors weights = small_weights();
  weights.at("second.weight") = weights.at("second.weight").to(at::kDouble);
  weights.at("second.weight").flatten()[3] = 1e39;
  Small small(/*train=*/false);
  const auto file = WeightsFile::open(write("w.safetensors", weights));
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { load_weights(file, small.model, *small.arena); }),
              HasSubstr("second.weight holds 1 value that is not finite, as Float (first at 3)"));
}

TEST_F(WeightsFileTest, OtherFloatTypesAreConverted) {
  Tensors weights = small_weights();
  for (auto& [name, tensor] : weights) {
    tensor = tensor.to(name == "first.bias" ? at::kDouble : at::kHalf);
  }
  Small small;
  load_weights(WeightsFile::open(write("w.safetensors", weights)), small.model, *small.arena);
  EXPECT_TRUE(at::equal(small.arena->export_parameter("first.weight", optim::Role::master()),
                        small_weights().at("first.weight")));
}

TEST_F(WeightsFileTest, BufferMayBeLeftOut) {
  Tensors weights = small_weights();
  weights.erase("table");
  Small small;
  load_weights(WeightsFile::open(write("w.safetensors", weights)), small.model, *small.arena);
  EXPECT_TRUE(at::equal(small.model.table, ramp({1, 3}, -1)));
}

TEST_F(WeightsFileTest, WhatDoesNotFitIsListedAndNothingChanges) {
  Tensors weights = small_weights();
  weights.erase("first.bias");
  weights.emplace("third.weight", ramp({2}, 0));
  weights["second.weight"] = ramp({3, 6}, 0);
  weights["table"] = ramp({1, 4}, 0);
  const auto file = WeightsFile::open(write("w.safetensors", weights));
  Small small;
  const Small untouched;
  const std::string message =
      refusal(ErrorKind::kIo, [&] { load_weights(file, small.model, *small.arena); });
  EXPECT_THAT(message, HasSubstr("w.safetensors"));
  EXPECT_THAT(message, HasSubstr("1 missing [first.bias]"));
  EXPECT_THAT(message, HasSubstr("1 unexpected [third.weight]"));
  EXPECT_THAT(message, HasSubstr("2 of another shape [second.weight (must be [2, 6], is [3, 6]), "
                                 "table (must be [1, 3], is [1, 4])]"));
  for (const auto& [name, parameter] : small.model.named_parameters()) {
    EXPECT_TRUE(at::equal(small.arena->export_parameter(name, optim::Role::master()),
                          untouched.arena->export_parameter(name, optim::Role::master())))
        << name;
  }
  EXPECT_TRUE(at::equal(small.model.table, untouched.model.table));
}

TEST_F(WeightsFileTest, LongListsAreCut) {
  Tensors weights = small_weights();
  for (int i = 0; i < 30; ++i) {
    weights.emplace("extra." + std::to_string(i), ramp({1}, 0));
  }
  Small small;
  EXPECT_THAT(refusal(ErrorKind::kIo,
                      [&] {
                        load_weights(WeightsFile::open(write("w.safetensors", weights)),
                                     small.model, *small.arena);
                      }),
              HasSubstr("30 unexpected [extra.0, "));
}

TEST_F(WeightsFileTest, IntegersAreNoWeights) {
  Tensors weights = small_weights();
  weights["first.bias"] = at::arange(6, at::kLong);
  Small small;
  EXPECT_THROW(
      load_weights(WeightsFile::open(write("w.safetensors", weights)), small.model, *small.arena),
      Error);
}

TEST_F(WeightsFileTest, SavedWeightsLoadAgain) {
  Small small;
  load_weights(WeightsFile::open(write("w.safetensors", small_weights())), small.model,
               *small.arena);
  const fs::path path = folder_.path() / "out.safetensors";
  save_weights(path, small.model, *small.arena, optim::Role::master(), at::kFloat,
               weights_metadata("a: config\n"));
  const auto file = WeightsFile::open(path);
  EXPECT_EQ(file.metadata(kConfigMetadata), "a: config\n");
  EXPECT_EQ(file.metadata("format"), "pt") << "what loaders of Hugging Face look for";
  EXPECT_EQ(file.metadata("other"), "");
  EXPECT_EQ(file.names().size(), 5U);
  EXPECT_FALSE(file.contains("third"));
  EXPECT_THAT(refusal(ErrorKind::kIo, [&] { (void)file.read("third"); }),
              HasSubstr("has no tensor third"));
  for (const auto& [name, tensor] : small_weights()) {
    EXPECT_TRUE(at::equal(file.read(name), tensor)) << name;
  }
  save_weights(path, small.model, *small.arena, optim::Role::average(0), at::kBFloat16, {});
  const auto halved = WeightsFile::open(path);
  EXPECT_EQ(halved.read("first.weight").scalar_type(), at::kBFloat16);
  Small again;
  load_weights(halved, again.model, *again.arena);
}

TEST_F(WeightsFileTest, OtherFilesAreRefused) {
  write_text(folder_.path() / "text.pt", "not a pickle");
  write_text(folder_.path() / "text.safetensors", "not tensors");
  for (const char* name : {"text.pt", "text.safetensors", "nowhere.pt", "nowhere.safetensors"}) {
    EXPECT_THAT(refusal(ErrorKind::kIo, [&] { (void)WeightsFile::open(folder_.path() / name); }),
                HasSubstr(name));
  }
}

// tools/make_checkpoint_fixtures.py: as the original DiT saves its training state.
class OriginalFileTest : public testing::Test {
 protected:
  OriginalFileTest() {
    config_.height = 4;
    config_.width = 6;
    config_.in_channels = 4;
    config_.transformer.patch = 2;
    config_.transformer.hidden = 4;
    config_.transformer.depth = 1;
    config_.transformer.heads = 2;
    config_.num_classes = 3;
    config_.time_scale = 1.0;
    model_.emplace(models::resolved(config_));
    arena_.emplace(model_->named_parameters(), model_->buckets(),
                   optim::ArenaOptions{.train = false, .ema_decays = {}, .sharding = {}});
  }

  /// Element k is `factor` times (k % 61 - 30) / 32.
  void expect_weights(double factor) const {
    for (const auto& [name, parameter] : model_->named_parameters()) {
      const at::Tensor got = arena_->export_parameter(name, optim::Role::compute()).flatten();
      for (int64_t k = 0; k < got.numel(); ++k) {
        ASSERT_EQ(got[k].item<double>(), factor * static_cast<double>(k % 61 - 30) / 32)
            << name << " element " << k;
      }
    }
  }

  const fs::path path_ = source_path("tests/checkpoint/data/dit_training.pt");
  models::ModelConfig config_;
  mutable std::optional<models::DiT> model_;
  std::optional<optim::Arena> arena_;
};

TEST_F(OriginalFileTest, AveragedWeightsAreTaken) {
  const auto file = WeightsFile::open(path_);
  EXPECT_TRUE(file.contains("blocks.0.adaLN_modulation.1.weight"));
  EXPECT_EQ(file.shape("y_embedder.embedding_table.weight"), (std::vector<int64_t>{4, 4}));
  load_weights(file, *model_, *arena_);
  expect_weights(0.5);
}

TEST_F(OriginalFileTest, RawWeightsAreTakenWhereAskedFor) {
  load_weights(WeightsFile::open(path_, /*averaged=*/false), *model_, *arena_);
  expect_weights(1.0);
}

TEST_F(OriginalFileTest, PositionTableIsOurs) {
  const at::Tensor theirs = WeightsFile::open(path_).read("pos_embed");
  EXPECT_TRUE(at::allclose(theirs, models::sin_cos_position_embedding(4, 2, 3), 1e-6, 1e-6));
}

TEST_F(OriginalFileTest, AnotherSizeIsRefused) {
  config_.transformer.hidden = 8;
  models::DiT wider(models::resolved(config_));
  optim::Arena arena(wider.named_parameters(), wider.buckets(),
                     {.train = false, .ema_decays = {}, .sharding = {}});
  EXPECT_THAT(
      refusal(ErrorKind::kIo, [&] { load_weights(WeightsFile::open(path_), wider, arena); }),
      HasSubstr("blocks.0.adaLN_modulation.1.bias (must be [48], is [24])"));
}

/// A file of 8-bit floats, 4-byte floats first, as the format wants it.
fs::path fp8_file(const fs::path& folder, const std::string& type, const std::string& scale_key,
                  const std::vector<float>& scale) {
  const std::vector<uint8_t> q = type == "E4M3" ? std::vector<uint8_t>{0x38, 0x3c, 0x7e, 0xb8}
                                                : std::vector<uint8_t>{0x3c, 0x3e, 0x7b, 0xbc};
  const DType dtype = type == "E4M3" ? DType::kF8E4M3 : DType::kF8E5M2;
  const std::vector<float> input = {3.0F};
  const std::vector<uint8_t> marker = {0, 0};
  std::vector<io::SafetensorsTensor> tensors;
  const auto floats = [&](const std::string& name, const std::vector<float>& values) {
    tensors.push_back({name, DType::kF32, {std::ssize(values)}, std::as_bytes(std::span(values))});
  };
  if (!scale_key.empty()) {
    floats("q." + scale_key, scale);
    floats("q.scale_input", input);
  }
  for (const char* name : {"q.weight", "k.weight"}) {
    tensors.push_back({name, dtype, {2, 2}, std::as_bytes(std::span(q))});
  }
  tensors.push_back({"scaled_fp8", dtype, {2}, std::as_bytes(std::span(marker))});
  fs::path path = folder / ("fp8_" + type + scale_key + ".safetensors");
  io::write_safetensors(path, tensors);
  return path;
}

// By the formats' own definitions (OCP, "8-bit floating point specification", 2023).
TEST_F(WeightsFileTest, Reads8BitFloatsTimesTheScaleBesideThem) {
  for (const std::string type : {"E4M3", "E5M2"}) {
    const float largest = type == "E4M3" ? 448.0F : 57'344.0F;
    const at::Tensor plain = at::tensor({1.0F, 1.5F, largest, -1.0F}).view({2, 2});
    for (const std::string key : {"", "scale_weight", "weight_scale"}) {
      WeightsFile file = WeightsFile::open(fp8_file(folder_.path(), type, key, {0.3F}));
      EXPECT_THAT(file.names(), testing::ElementsAre("k.weight", "q.weight"));
      const at::Tensor scaled = key.empty() ? plain : plain * 0.3F;
      EXPECT_TRUE(at::equal(file.read("k.weight"), plain)) << type << key;
      EXPECT_TRUE(at::equal(file.read("q.weight"), scaled)) << type << key;
      const LateTensors late = file.tensors();
      EXPECT_EQ(late.at("q.weight").type, at::kFloat);
      EXPECT_TRUE(at::equal(late.at("q.weight").read_all(), scaled)) << type << key;
      file.rename({{.path = "qk.weight", .keys = {"q.weight", "k.weight"}}});
      EXPECT_TRUE(at::equal(file.read("qk.weight"), at::cat({scaled, plain}))) << type << key;
    }
  }
  const auto refusal = [&](const std::vector<float>& scale) {
    return error_of(ErrorKind::kIo, [&] {
      return WeightsFile::open(fp8_file(folder_.path(), "E4M3", "scale_weight", scale))
          .names()
          .size();
    });
  };
  EXPECT_THAT(refusal({1.0F, 2.0F}), HasSubstr("q.scale_weight must be one number"));
  EXPECT_THAT(refusal({0.0F}), HasSubstr("q.scale_weight must be a number above 0"));
  EXPECT_THAT(refusal({std::nanf("")}), HasSubstr("must be a number above 0"));
}

}  // namespace weights_file_test
}  // namespace kinora::checkpoint
