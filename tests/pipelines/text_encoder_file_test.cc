#include "kinora/pipelines/text_encoder_file.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "kinora/io/file.h"
#include "kinora/pipelines/text_encoder_config.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/models/formula_file.h"
#include "tests/models/text_encoders/text_fixture.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace text_encoder_file_test {

namespace fs = std::filesystem;
using io::test::TemporaryFolder;
using models::relative_difference;
using models::TextFixture;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kInFp32 = 1e-5;

using Weights = models::NamedTensors;

Weights weights_of(const TextFixture& fixture) {
  Weights weights;
  const auto encoder = fixture.encoder();
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    weights[path] = fixture.weight(path, parameter->shape);
  }
  return weights;
}

void write_folder(const fs::path& folder, const Weights& weights, const std::string& config) {
  fs::create_directories(folder);
  io::write_file_atomic(folder / "config.json", config);
  models::write_tensors(folder / "model.safetensors", weights);
}

/// All keys with `prefix` before them, or without it.
Weights with_prefix(const Weights& weights, const std::string& prefix) {
  Weights result;
  for (const auto& [name, value] : weights) {
    result[prefix + name] = value;
  }
  return result;
}
Weights without_prefix(const Weights& weights, const std::string& prefix) {
  Weights result;
  for (const auto& [name, value] : weights) {
    result[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = value;
  }
  return result;
}

/// How far an encoder's states are from the fixture's.
double difference(models::TextEncoder& encoder, const TextFixture& fixture) {
  const at::NoGradGuard no_grad;
  const models::TextStates out = encoder.encode(fixture.tokens());
  const double pooled =
      fixture.has("pooled") ? relative_difference(out.pooled, fixture.tensor("pooled")) : 0.0;
  return std::max(pooled, relative_difference(out.states, fixture.tensor("states")));
}
double difference(const fs::path& path, const TextFixture& fixture,
                  const TextEncoderOptions& options = {}) {
  return difference(*open_text_encoder(path, options), fixture);
}

class TextEncoderFolderTest : public testing::TestWithParam<const char*> {};

TEST_P(TextEncoderFolderTest, FoldersOfTransformersLoad) {
  const TemporaryFolder folder;
  const TextFixture fixture(GetParam());
  write_folder(folder / "whole", weights_of(fixture), fixture.config_text());
  EXPECT_LT(difference(folder / "whole", fixture), kInFp32);
  write_folder(folder / "pipeline/text_encoder", weights_of(fixture), fixture.config_text());
  EXPECT_LT(difference(folder / "pipeline", fixture), kInFp32);
  // As transformers 5 writes CLIPTextModel.
  write_folder(folder / "bare", without_prefix(weights_of(fixture), "text_model."),
               fixture.config_text());
  EXPECT_LT(difference(folder / "bare", fixture), kInFp32);
}

TEST_P(TextEncoderFolderTest, WeightsTakeThePrecisionAskedFor) {
  const TemporaryFolder folder;
  const TextFixture fixture(GetParam());
  write_folder(folder.path(), weights_of(fixture), fixture.config_text());
  for (const auto& [type, bound] : {std::pair{at::kBFloat16, 2e-2}, {at::kHalf, 2.5e-3}}) {
    const auto encoder = open_text_encoder(folder.path(), {.type = type});
    for (const auto& [path, parameter] : encoder->named_parameters()) {
      EXPECT_EQ(parameter->value.scalar_type(), type) << path;
      EXPECT_TRUE(parameter->frozen && !parameter->value.requires_grad()) << path;
    }
    EXPECT_LT(difference(*encoder, fixture), bound);
  }
  for (const models::EightBit format : {models::EightBit::kInt8, models::EightBit::kFp8}) {
    const auto encoder =
        open_text_encoder(folder.path(), {.type = at::kBFloat16, .eight_bits = format});
    for (const models::TextLinear* linear : encoder->linears()) {
      EXPECT_EQ(linear->weight.value.element_size(), 1);
    }
    EXPECT_EQ(encoder->vocabularies().front().parameter->value.scalar_type(), at::kBFloat16);
    EXPECT_LT(difference(*encoder, fixture), 1.3e-1);
  }
}

TEST_P(TextEncoderFolderTest, StreamedBlocksHoldWeightsOnlyWhileTheyCompute) {
  const at::NoGradGuard no_grad;
  const TemporaryFolder folder;
  const TextFixture fixture(GetParam());
  write_folder(folder.path(), weights_of(fixture), fixture.config_text());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto whole = open_text_encoder(folder.path(), {.type = type});
    const auto streamed = open_text_encoder(folder.path(), {.type = type, .streamed = true});
    int64_t most = 0;
    streamed->set_tap([&](const std::string& /*path*/, const at::Tensor& output) {
      int64_t blocks = 0;
      for (int64_t i = 0; i < streamed->num_blocks(); ++i) {
        for (const auto& [name, parameter] : streamed->named_parameters()) {
          if (name.starts_with(streamed->block_path(i)) && parameter->value.defined()) {
            ++blocks;
            break;
          }
        }
      }
      most = std::max(most, blocks);
      return output;
    });
    // Twice, and once not to the end.
    for (const int64_t before_last : {0, 1, 0}) {
      const models::TextLayer layer{.before_last = before_last};
      const at::Tensor expected = whole->encode(fixture.tokens(), layer).states;
      const at::Tensor states = streamed->encode(fixture.tokens(), layer).states;
      if (type == at::kFloat) {
        EXPECT_TRUE(states.equal(expected));
      } else {  // its vocabulary is the file's, not rounded
        EXPECT_LT(relative_difference(states, expected), 2e-2);
      }
    }
    EXPECT_EQ(most, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TextEncoderFolderTest,
                         testing::Values("t5", "t5_gated", "umt5", "clip_old_end",
                                         "clip_projection", "llama", "ldm_bert"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TextEncoderFileTest, ShardsLoad) {
  const TextFixture fixture("t5");
  EXPECT_LT(difference(source_path("tests/pipelines/data/t5_bin").string(), fixture), kInFp32);
  const TemporaryFolder folder;
  Weights first;
  Weights second;
  json map;
  for (const auto& [name, value] : weights_of(fixture)) {
    const bool is_first = first.size() < 9;
    (is_first ? first : second)[name] = value;
    map[name] = is_first ? "a.safetensors" : "b.safetensors";
  }
  models::write_tensors(folder / "a.safetensors", first);
  models::write_tensors(folder / "b.safetensors", second);
  io::write_file_atomic(folder / "model.safetensors.index.json", json{{"weight_map", map}}.dump());
  io::write_file_atomic(folder / "config.json", std::string_view(fixture.config_text()));
  EXPECT_LT(difference(folder.path(), fixture), kInFp32);
  EXPECT_LT(difference(folder / "model.safetensors.index.json", fixture), kInFp32);
}

TEST(TextEncoderFileTest, KeysMayHaveAnythingBeforeThem) {
  const TemporaryFolder folder;
  for (const char* name : {"umt5", "clip_projection"}) {
    const TextFixture fixture(name);
    io::write_file_atomic(folder / "config.json", std::string_view(fixture.config_text()));
    for (const char* prefix : {"text_encoder.", "cond_stage_model.transformer.", ""}) {
      models::write_tensors(folder / "one.safetensors", with_prefix(weights_of(fixture), prefix));
      EXPECT_LT(difference(folder / "one.safetensors", fixture), kInFp32) << prefix;
    }
  }
}

TEST(TextEncoderFileTest, OtherPartsOfAFileAreLeftOut) {
  const TemporaryFolder folder;
  const TextFixture clip("clip_projection");
  Weights weights = weights_of(clip);
  weights["text_model.embeddings.position_ids"] = at::tensor({0, 1, 2});
  weights["logit_scale"] = at::tensor(2.0F);
  weights["visual_projection.weight"] = at::zeros({2, 2});
  weights["vision_model.encoder.layers.0.self_attn.q_proj.weight"] = at::zeros({2, 2});
  json config = {{"model_type", "clip"},
                 {"projection_dim", 10},
                 {"text_config", json::parse(clip.config_text())}};
  write_folder(folder / "clip", weights, config.dump());
  EXPECT_LT(difference(folder / "clip", clip), kInFp32);

  const TextFixture t5("t5");
  weights = weights_of(t5);
  weights["decoder.block.0.layer.0.SelfAttention.q.weight"] = at::zeros({2, 2});
  weights["lm_head.weight"] = at::zeros({2, 2});
  write_folder(folder / "t5", weights, t5.config_text());
  EXPECT_LT(difference(folder / "t5", t5), kInFp32);
  // Only T5's stack, with its own name of the vocabulary.
  weights = without_prefix(weights_of(t5), "encoder.");
  weights["embed_tokens.weight"] = weights.extract("shared.weight").mapped();
  for (const char* prefix : {"", "text_encoder."}) {
    write_folder(folder / "stack", with_prefix(weights, prefix), t5.config_text());
    EXPECT_LT(difference(folder / "stack", t5), kInFp32) << prefix;
  }
}

TEST(TextEncoderFileTest, OneOfSeveralEncodersIsChosen) {
  const TemporaryFolder folder;
  const TextFixture t5("t5_gated");
  const TextFixture clip("clip_projection");
  Weights weights = with_prefix(weights_of(t5), "text_encoders.t5xxl.");
  weights.merge(with_prefix(weights_of(clip), "text_encoders.clip_g."));
  models::write_tensors(folder / "all.safetensors", weights);
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return open_text_encoder(folder / "all.safetensors", {}); }),
              AllOf(HasSubstr("2 text encoders"), HasSubstr("\"text_encoders.t5xxl.encoder.\""),
                    HasSubstr("\"text_encoders.clip_g.text_model.\"")));
  io::write_file_atomic(folder / "config.json", std::string_view(t5.config_text()));
  EXPECT_LT(difference(folder / "all.safetensors", t5, {.prefix = "text_encoders.t5xxl."}),
            kInFp32);
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [&] {
                         return open_text_encoder(folder / "all.safetensors",
                                                  {.prefix = "text_encoders.llama."});
                       }),
              HasSubstr("no key after text_encoders.llama."));
}

TEST(TextEncoderFileTest, ShapesTellHowAnEncoderIsBuilt) {
  const TemporaryFolder folder;
  for (const char* name : {"t5", "t5_gated", "umt5"}) {
    const TextFixture fixture(name);
    models::write_tensors(folder / "one.safetensors", weights_of(fixture));
    const auto encoder = open_text_encoder(folder / "one.safetensors", {});
    const models::T5Config got = dynamic_cast<models::T5Encoder&>(*encoder).config();
    models::T5Config wanted = fixture.t5();
    EXPECT_EQ(got.vocab_size, wanted.vocab_size);
    EXPECT_EQ(got.d_kv, wanted.d_kv);
    EXPECT_EQ(got.num_layers, wanted.num_layers);
    EXPECT_EQ(got.relative_attention_max_distance, 128);
    EXPECT_EQ(got.activation, wanted.activation);
    EXPECT_EQ(got.is_gated, wanted.is_gated);
    EXPECT_EQ(got.bias_in_every_block, wanted.bias_in_every_block);
  }
  // ViT-L/14 but for its depth and its number of words.
  const models::ClipTextConfig config{.vocab_size = 20,
                                      .hidden_size = 768,
                                      .intermediate_size = 100,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 12};
  models::ClipTextEncoder clip(config);
  Weights weights;
  for (const auto& [path, parameter] : clip.named_parameters()) {
    parameter->value = weights[path] = models::formula_weight(path, parameter->shape);
  }
  models::write_tensors(folder / "one.safetensors",
                        with_prefix(weights, "cond_stage_model.transformer."));
  const auto encoder = open_text_encoder(folder / "one.safetensors", {});
  const at::NoGradGuard no_grad;
  models::TextTokens tokens;
  tokens.add(std::vector<int32_t>{18, 3, 5, 19});
  // 19 is the largest id here as 49407 is in the published vocabulary.
  EXPECT_TRUE(encoder->encode(tokens).states.equal([&] {
    models::ClipTextConfig same = config;
    same.eos_token_id = 19;
    models::ClipTextEncoder other(same);
    for (const auto& [path, parameter] : other.named_parameters()) {
      parameter->value = weights.at(path);
    }
    return other.encode(tokens).states;
  }()));
}

/// The message for a folder of the fixture after `change`.
std::string error_after(const char* fixture_name, ErrorKind kind,
                        const std::function<void(json& config, Weights& weights)>& change) {
  const TemporaryFolder folder;
  const TextFixture fixture(fixture_name);
  json config = json::parse(fixture.config_text());
  Weights weights = weights_of(fixture);
  change(config, weights);
  write_folder(folder.path(), weights, config.dump());
  return error_of(kind, [&] { return open_text_encoder(folder.path(), {}); });
}

std::string error_of_config(const char* fixture_name, ErrorKind kind, const char* key,
                            const json& value) {
  return error_after(fixture_name, kind,
                     [&](json& config, Weights& /*weights*/) { config[key] = value; });
}

TEST(TextEncoderFileTest, WeightsThatDoNotFitAreNamedWithBothSizes) {
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "vocab_size", 50),
              HasSubstr("shared.weight (must be [50, 24], is [48, 24])"));
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "d_model", 32),
              HasSubstr("(must be [30, 32], is [30, 24])"));
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "num_layers", 4),
              AllOf(HasSubstr("8 missing"), HasSubstr("encoder.block.3.")));
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "num_layers", 2), HasSubstr("8 unexpected"));
  EXPECT_THAT(error_of_config("clip_projection", ErrorKind::kIo, "projection_dim", 11),
              HasSubstr("text_projection.weight (must be [11, 24], is [10, 24])"));
  EXPECT_THAT(error_of_config("clip_projection", ErrorKind::kIo, "max_position_embeddings", 77),
              HasSubstr("(must be [77, 24], is [21, 24])"));
  const auto without = [](const char* fixture, const char* path) {
    return error_after(fixture, ErrorKind::kIo, [&](json& /*config*/, Weights& weights) {
      EXPECT_EQ(weights.erase(path), 1U);
    });
  };
  EXPECT_THAT(without("t5", "shared.weight"), HasSubstr("1 missing [shared.weight]"));
  EXPECT_THAT(without("clip_projection", "text_projection.weight"),
              HasSubstr("1 missing [text_projection.weight]"));
  EXPECT_THAT(without("umt5", "encoder.block.0.layer.0.SelfAttention.q.weight"),
              HasSubstr("no text encoder"));
  EXPECT_THAT(error_after("t5", ErrorKind::kIo,
                          [](json& /*config*/, Weights& weights) {
                            at::Tensor& value = weights.at("shared.weight");
                            value = value.to(at::kInt);
                          }),
              AllOf(HasSubstr("floating type"), HasSubstr("Int")));
}

TEST(TextEncoderFileTest, BadConfigsAreNamed) {
  const auto config = ErrorKind::kConfig;
  EXPECT_THAT(error_of_config("t5", config, "model_type", "bert"),
              AllOf(HasSubstr("umt5"), HasSubstr("\"bert\"")));
  EXPECT_THAT(error_of_config("t5", config, "d_model", 0), HasSubstr("got 0"));
  EXPECT_THAT(error_of_config("t5", config, "num_layers", 1000000000), HasSubstr("got 1000000000"));
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "d_model", "24"), HasSubstr("\"24\""));
  EXPECT_THAT(error_of_config("t5", ErrorKind::kIo, "d_model", 24.5), HasSubstr("24.5"));
  EXPECT_THAT(error_of_config("t5", config, "layer_norm_epsilon", -1.0), HasSubstr("got -1"));
  EXPECT_THAT(error_of_config("t5", config, "feed_forward_proj", "gated-gelu"),
              AllOf(HasSubstr("gelu_new"), HasSubstr("\"relu\"")));
  EXPECT_THAT(error_of_config("t5_gated", config, "is_gated_act", false), HasSubstr("false"));
  EXPECT_THAT(error_of_config("t5", config, "relative_attention_num_buckets", 6),
              HasSubstr("multiple of 4"));
  EXPECT_THAT(error_of_config("t5", config, "relative_attention_max_distance", 2),
              HasSubstr("got 2"));
  EXPECT_THAT(error_of_config("clip_projection", config, "hidden_act", "mish"),
              AllOf(HasSubstr("\"mish\""), HasSubstr("quick_gelu")));
  EXPECT_THAT(error_of_config("clip_projection", config, "num_attention_heads", 5),
              HasSubstr("got 5"));
  EXPECT_THAT(error_of_config("clip_projection", ErrorKind::kIo, "eos_token_id", "x"),
              HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of(ErrorKind::kIo,
                       [] { return parse_text_encoder_config("[1]", "config.json").index(); }),
              HasSubstr("not a JSON object"));
  EXPECT_THAT(
      error_of(ErrorKind::kIo,
               [] { return parse_text_encoder_config(R"({"model_type": "clip"})", "c").index(); }),
      HasSubstr("text_config"));
}

TEST(TextEncoderFileTest, DeepJsonIsAnErrorAndNoCrash) {
  const auto error = [](const std::string& text) {
    return error_of(ErrorKind::kIo,
                    [&] { return parse_text_encoder_config(text, "config.json").index(); });
  };
  constexpr size_t kLevels = 400000;
  const std::string open(kLevels, '[');
  const std::string value = open + std::string(kLevels, ']');
  EXPECT_THAT(error(open), HasSubstr("not a JSON object"));
  EXPECT_THAT(error(R"({"model_type": "t5", "d_model": )" + value + "}"), HasSubstr("d_model"));
  EXPECT_THAT(error(R"({"model_type": "clip", "text_config": )" + value + "}"),
              HasSubstr("text_config"));
}

TEST(TextEncoderFileTest, PathsThatAreNoneAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return open_text_encoder(folder / "none", {}); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return open_text_encoder(folder.path(), {}); }),
              AllOf(HasSubstr("there is neither"), HasSubstr("text_encoder/config.json")));
  models::write_tensors(folder / "other.safetensors", {{"weight", at::zeros({2})}});
  EXPECT_THAT(
      error_of(ErrorKind::kIo, [&] { return open_text_encoder(folder / "other.safetensors", {}); }),
      HasSubstr("no text encoder"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return open_text_encoder(
                             folder.path(),
                             {.eight_bits = models::EightBit::kInt8, .streamed = true});
                       }),
              HasSubstr("8 bits"));
}

TEST(TextEncoderFileTest, ShapesThatTellNothingAreNamed) {
  const TemporaryFolder folder;
  const auto error = [&](const char* fixture, const char* path, at::IntArrayRef shape) {
    Weights weights = weights_of(TextFixture(fixture));
    weights.at(path) = at::zeros(shape);
    models::write_tensors(folder / "one.safetensors", weights);
    return error_of(ErrorKind::kIo,
                    [&] { return open_text_encoder(folder / "one.safetensors", {}); });
  };
  EXPECT_THAT(error("t5", "shared.weight", {4}), HasSubstr("must be a matrix, got shape [4]"));
  EXPECT_THAT(error("t5", "encoder.block.0.layer.0.SelfAttention.q.weight", {7, 24}),
              AllOf(HasSubstr("5 heads"), HasSubstr("got 7")));
  EXPECT_THAT(error("clip_projection", "text_model.final_layer_norm.bias", {24}),
              AllOf(HasSubstr("24 channels"), HasSubstr("config.json")));
}

}  // namespace text_encoder_file_test
}  // namespace kinora::pipelines
