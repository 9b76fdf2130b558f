#include "kinora/models/unets/unet_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::models {
namespace unet_names_test {

using nlohmann::json;
using testing::HasSubstr;

using Shape = std::vector<int64_t>;
using Shapes = std::map<std::string, Shape>;

/// A model of tools/reference/make_compvis_fixtures.py.
class UnetNamesTest : public testing::TestWithParam<const char*> {
 protected:
  struct Row {
    std::string path;  // of diffusers, which is ours
    Shape shape;       // in CompVis' file
  };

  UnetNamesTest() {
    std::ifstream file(source_path("tests/models/data/compvis_unets.json"));
    const json model = json::parse(file).at(GetParam());
    config_ = json::parse(model.at("config").get<std::string>());
    for (const json& row : model.at("tensors")) {
      rows_[row[0]] = {row[2], row[1].get<Shape>()};
      shapes_[row[0]] = row[1].get<Shape>();
      names_.push_back(row[0]);
    }
  }

  /// What the file's names and shapes tell, with what they do not.
  [[nodiscard]] ModelConfig told() const {
    ModelConfig config = find_compvis_unet(shapes_, "the file").value();
    config.height = 64;
    config.width = 64;
    config.text_tokens = 77;
    config.time_scale = 1.0;
    return resolved(config);
  }

  json config_;
  std::map<std::string, Row> rows_;
  Shapes shapes_;
  std::vector<std::string> names_;
};

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(Models, UnetNamesTest, testing::Values("sd1", "sd2", "deep"), name_of);

TEST_P(UnetNamesTest, NamesAndShapesTellTheModel) {
  const ModelConfig model = told();
  EXPECT_EQ(model.in_channels, config_["in_channels"]);
  EXPECT_EQ(model.out_channels(), config_["out_channels"]);
  EXPECT_EQ(model.text_channels, config_["cross_attention_dim"]);
  const UnetConfig& unet = model.unet;
  EXPECT_EQ(json(unet.channels), config_["block_out_channels"]);
  EXPECT_EQ(unet.resnets, config_["layers_per_block"]);
  EXPECT_EQ(unet.linear_projection, config_["use_linear_projection"]);
  const int64_t depth = config_["transformer_layers_per_block"];
  EXPECT_EQ(unet.middle_depth, depth);
  for (size_t level = 0; level < unet.channels.size(); ++level) {
    const bool attends = config_["down_block_types"][level] == "CrossAttnDownBlock2D";
    EXPECT_EQ(unet.depths[level], attends ? depth : 0) << level;
    const json& heads = config_["attention_head_dim"];
    EXPECT_EQ(unet.heads[level], heads.is_array() ? heads[level] : heads) << level;
  }
  EXPECT_EQ(unet.norm_groups, 32);
}

TEST_P(UnetNamesTest, NamesAreThoseOfTheOriginalAsDiffusersConvertsThem) {
  const ModelConfig model = told();
  std::map<std::string, Shape> ours;
  const auto made = make_model(model);
  for (const auto& [path, parameter] : made->named_parameters()) {
    ours[path] = parameter->shape;
  }
  const nn::Naming naming = compvis_unet_naming(model);
  ASSERT_EQ(naming.size(), rows_.size());
  for (const nn::OtherName& name : naming) {
    ASSERT_EQ(name.keys.size(), 1U);
    const auto row = rows_.find(name.keys.front());
    ASSERT_NE(row, rows_.end()) << name.keys.front();
    EXPECT_EQ(row->second.path, name.path);
    EXPECT_EQ(row->second.shape, name.shape.empty() ? ours.at(name.path) : name.shape) << name.path;
  }
}

TEST_P(UnetNamesTest, NamesOfAFileAreFoundWhateverElseItHas) {
  std::vector<std::string> names = names_;
  names.emplace_back("first_stage_model.encoder.conv_in.weight");
  names.emplace_back("model.diffusion_model.input_blocks.1.9.strange");
  for (const bool averaged : {false, true}) {
    if (averaged) {
      for (const std::string& name : names_) {  // as diffusers' extract_ema
        std::string key = name.substr(std::string("model.").size());
        std::erase(key, '.');
        names.push_back("model_ema." + key);
      }
    }
    const nn::Naming found = find_compvis_unet_naming(names, {}, averaged).value();
    ASSERT_EQ(found.size(), rows_.size() + 1);
    for (const nn::OtherName& name : found) {
      if (name.path == "model.diffusion_model.input_blocks.1.9.strange") {
        continue;
      }
      const auto row = std::ranges::find_if(
          rows_, [&name](const auto& each) { return each.second.path == name.path; });
      ASSERT_NE(row, rows_.end()) << name.path;
      std::string key = row->first;
      if (averaged) {
        key = key.substr(std::string("model.").size());
        std::erase(key, '.');
        key = "model_ema." + key;
      }
      EXPECT_EQ(name.keys, std::vector{key});
    }
  }
  EXPECT_FALSE(find_compvis_unet_naming({"conv_in.weight"}, {}, false).has_value());
}

TEST_P(UnetNamesTest, ChannelsSayWhatItIsShown) {
  Shapes shapes = shapes_;
  const std::string key = std::string(kCompvisUnet) + "input_blocks.0.0.weight";
  shapes[std::string(kCompvisUnet) + "out.2.weight"][0] = 4;
  for (const auto& [channels, input] :
       {std::pair{4, ShownInput::kPlain}, {8, ShownInput::kEdit}, {9, ShownInput::kInpaint}}) {
    shapes[key][1] = channels;
    const ModelConfig config = find_compvis_unet(shapes, "x.ckpt").value();
    EXPECT_EQ(config.unet.input, input);
    EXPECT_EQ(config.in_channels, 4);
  }
}

// As latent diffusion's cin256 has them, or among the U-Net's own.
TEST_P(UnetNamesTest, VectorsOfClassesMakeAUnetOfClasses) {
  const std::string token = "cond_stage_model.embedding.weight";
  const std::string in_time = std::string(kCompvisUnet) + "label_emb.weight";
  const int64_t text = config_["cross_attention_dim"];
  const int64_t time = 4 * config_["block_out_channels"][0].get<int64_t>();
  for (const auto& [key, width, classes, path] :
       {std::tuple{token, text, UnetClasses::kToken, "class_token.weight"},
        std::tuple{in_time, time, UnetClasses::kTime, "class_embedding.weight"}}) {
    Shapes shapes = shapes_;
    shapes[key] = {1001, width};
    ModelConfig config = find_compvis_unet(shapes, "x.ckpt").value();
    EXPECT_EQ(config.num_classes, 1000);
    EXPECT_EQ(config.unet.classes, classes);
    if (!config.unet.linear_projection) {
      EXPECT_EQ(config.unet.heads, (std::vector<int64_t>(config.unet.channels.size(), 1)));
    }
    config.height = 64;
    config.width = 64;
    config = resolved(config);
    EXPECT_FALSE(config.takes_text());
    std::vector<std::string> names = names_;
    names.push_back(key);
    std::map<std::string, std::string> written;
    for (const nn::OtherName& name : compvis_unet_naming(config)) {
      written[name.path] = name.keys.front();
    }
    EXPECT_EQ(written.size(), names.size());
    EXPECT_EQ(written.at(path), key);
    const nn::Naming found = find_compvis_unet_naming(names, {}, false).value();
    for (const nn::OtherName& name : found) {
      EXPECT_EQ(written.at(name.path), name.keys.front());
    }
    shapes[key] = {1001, width + 1};
    EXPECT_THAT(
        error_of(ErrorKind::kIo, [&] { return find_compvis_unet(shapes, "x.ckpt").has_value(); }),
        HasSubstr(key + " must have a vector of " + std::to_string(width)));
  }
  Shapes both = shapes_;
  both[token] = {3, text};
  both[in_time] = {3, time};
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return find_compvis_unet(both, "x.ckpt").has_value(); }),
      HasSubstr("x.ckpt has both"));
}

TEST_P(UnetNamesTest, WhatKinoraLacksIsRefusedByName) {
  const auto refusal = [&](ErrorKind kind, auto change) {
    Shapes shapes = shapes_;
    change(shapes);
    return error_of(kind, [&] { return find_compvis_unet(shapes, "x.ckpt").has_value(); });
  };
  const std::string key = kCompvisUnet;
  EXPECT_THAT(refusal(ErrorKind::kConfig,
                      [&](Shapes& s) {
                        s[key + "label_emb.0.0.weight"] = {1280, 2048};
                      }),
              AllOf(HasSubstr("x.ckpt"), HasSubstr("label_emb")));
  EXPECT_THAT(
      refusal(ErrorKind::kConfig, [&](Shapes& s) { s[key + "input_blocks.0.0.weight"][1] = 7; }),
      HasSubstr("as many channels as it takes, 7, or twice as many"));
  EXPECT_THAT(refusal(ErrorKind::kIo, [&](Shapes& s) { s.erase(key + "out.2.weight"); }),
              HasSubstr("x.ckpt has no " + key + "out.2.weight"));
  EXPECT_THAT(refusal(ErrorKind::kIo, [&](Shapes& s) { s[key + "out.2.weight"] = {4}; }),
              HasSubstr("must have two dims or four, got 1"));
  ModelConfig plain = told();
  plain.unet.middle_depth = 0;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return compvis_unet_naming(plain).size(); }),
              HasSubstr("middle_depth must be above 0 for CompVis"));
}

}  // namespace unet_names_test
}  // namespace kinora::models
