// Latent diffusion of captions, as text2img-large is published by diffusers and CompVis, and of
// layouts, as CompVis publishes it, compared with diffusers' LDMTextToImagePipeline and with the
// parts of it: tools/reference/make_ldm_words_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/models/text_encoders/ldm_bert_encoder.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/pipelines/pipeline.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::inference {
namespace latent_diffusion_words_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};
constexpr const char* kVocabulary = "vocab.txt";

double relative(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

class LatentDiffusionWordsTest : public testing::Test {
 protected:
  LatentDiffusionWordsTest() { fs::create_directories(folder_); }
  ~LatentDiffusionWordsTest() override { fs::remove_all(folder_); }

  [[nodiscard]] const fs::path& folder() const { return folder_; }
  [[nodiscard]] fs::path file() const { return folder_ / "text2img.safetensors"; }
  [[nodiscard]] const WeightsFile& expected() const { return expected_; }
  /// The tensors of a part, under diffusers' names.
  [[nodiscard]] models::NamedTensors tensors_of(const std::string& part) const {
    return tensors_of(expected_, part);
  }
  static models::NamedTensors tensors_of(const WeightsFile& its, const std::string& part) {
    models::NamedTensors tensors;
    const json shapes = json::parse(its.metadata(part + ".shapes"));
    for (const auto& [key, shape] : shapes.items()) {
      tensors[key] = models::formula_weight(key, shape.get<std::vector<int64_t>>());
    }
    return tensors;
  }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void add_tokenizer(const std::string& name) const {
    fs::remove_all(folder_ / "tokenizer");
    fs::copy(source_path("tests/tokenizers/data") / name, folder_ / "tokenizer");
  }
  /// A folder of LDMTextToImagePipeline.
  void write_folder() const {
    write(folder_ / "model_index.json", R"({"_class_name": "LDMTextToImagePipeline"})");
    write(folder_ / "scheduler/scheduler_config.json", expected_.metadata("scheduler"));
    for (const auto& [part, weights] : {std::pair{"unet", "diffusion_pytorch_model.safetensors"},
                                        std::pair{"vqvae", "diffusion_pytorch_model.safetensors"},
                                        std::pair{"bert", "model.safetensors"}}) {
      write(folder_ / part / "config.json", expected_.metadata(part));
      models::write_tensors(folder_ / part / weights, tensors_of(part));
    }
    add_tokenizer("bert");
  }
  /// The same as CompVis has it in one file.
  void write_file() const {
    write_file(expected_, config(), 4);
    add_tokenizer("bert");
  }
  /// levels: of the autoencoder.
  void write_file(const WeightsFile& its, const models::ModelConfig& config, size_t levels) const {
    models::NamedTensors tensors;
    models::NamedTensors unet = tensors_of(its, "unet");
    for (const nn::OtherName& name : models::compvis_unet_naming(config)) {
      tensors[name.keys.front()] = unet.at(name.path);
    }
    const models::NamedTensors bert = tensors_of(its, "bert");
    for (const nn::OtherName& name : models::from_x_transformer(2)) {
      if (const auto found = bert.find(name.keys.front()); found != bert.end()) {
        tensors["cond_stage_model.transformer." + name.path] = found->second;
      }
    }
    for (const char* end : {"weight", "bias"}) {  // what predicts tokens
      tensors[std::string("cond_stage_model.transformer.to_logits.") + end] =
          bert.at(std::string("to_logits.") + end);
    }
    for (const auto& [key, value] : tensors_of(its, "vqvae")) {
      tensors["first_stage_model." + models::compvis_kl_key(key, levels)] =
          models::is_kl_attention_weight(key) ? value.unsqueeze(-1).unsqueeze(-1) : value;
    }
    models::write_tensors(file(), tensors);
  }
  /// Of the U-Net.
  static models::ModelConfig config() {
    models::ModelConfig config;
    config.architecture = "unet";
    config.in_channels = 4;
    config.learn_sigma = false;
    config.height = config.width = 4;
    config.text_channels = 24;
    config.text_tokens = 77;
    config.unet.channels = {32, 64};
    config.unet.resnets = 1;
    config.unet.depths = {1, 0};
    config.unet.middle_depth = 1;
    config.unet.heads = {8, 8};
    return config;
  }
  [[nodiscard]] Prompts prompts(const fs::path& path, const LoadOptions& options = kOnCpu) const {
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(expected_.metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(path, options), {.says = false});
  }
  /// Draws the fixture's latents from `path`, and decodes them.
  void expect_drawn(const fs::path& path, const LoadOptions& options) const {
    const auto encoded = std::make_shared<Prompts>(prompts(path, options));
    TrainedModel trained = load_trained(path, options);
    const Request request{.encoded = encoded, .seed = 5, .guidance = 5.0};
    const at::Tensor latents = Drawing(trained, {request}, {.steps = 4}).draw();
    expect_those_of(expected_, trained, latents);
  }
  static void expect_those_of(const WeightsFile& expected, const TrainedModel& trained,
                              const at::Tensor& latents) {
    EXPECT_LT(relative(latents, expected.read("latents")), 1e-4);
    const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
    expect_pictures(*decoder, latents, expected.read("pictures"));
  }

 private:
  fs::path folder_ =
      fs::path(testing::TempDir()) / ("latent-diffusion-words-" + std::to_string(::getpid()));
  WeightsFile expected_ =
      WeightsFile::open(source_path("tests/inference/data/latent_diffusion/words.safetensors"));
};

TEST_F(LatentDiffusionWordsTest, StatesAndPicturesOfAFolderAreThoseOfDiffusers) {
  write_folder();
  const at::Tensor states = expected().read("states");
  for (const char* tokenizer : {"bert", "bert_json"}) {
    add_tokenizer(tokenizer);
    const Prompts ours = prompts(folder());
    const std::vector<data::Text> texts = {ours.all[0].text, ours.all[1].text,
                                           ours.negative.value()};
    for (size_t i = 0; i < texts.size(); ++i) {
      const at::Tensor wanted = states.narrow(0, 77 * static_cast<int64_t>(i), 77);
      EXPECT_LT(relative(at::tensor(texts[i].tokens).view_as(wanted), wanted), 5e-6) << i;
    }
  }
  const ModelRecipe recipe = read_recipe(folder(), kOnCpu);
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 1.0);
  EXPECT_EQ(recipe.model.text_tokens, 77);
  expect_drawn(folder(), kOnCpu);
}

TEST_F(LatentDiffusionWordsTest, AFileOfCompvisDrawsTheSame) {
  write_file();
  const ModelRecipe recipe = read_recipe(file(), kOnCpu);
  EXPECT_EQ(recipe.model.height, 32);
  EXPECT_EQ(recipe.model.compression, 8);
  EXPECT_EQ(recipe.model.unet.heads, (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(recipe.sample.sampling.guidance, 5.0);
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.objective.beta_start, 0.00085);
  EXPECT_EQ(recipe.autoencoder.path, file().string());
  expect_drawn(file(), {.device = DeviceChoice::kCpu,
                        .overrides = {"model.height=4", "model.width=4", "sample.steps_offset=0",
                                      "sample.end_clean=true"},
                        .says = false});
}

// text2img256 has latents of 3 channels, and heads of 32.
TEST_F(LatentDiffusionWordsTest, HeadsAreAsPublished) {
  std::map<std::string, std::vector<int64_t>> shapes;
  write_file();
  for (const auto& [name, tensor] : WeightsFile::open(file()).tensors()) {
    shapes[name] = tensor.shape;
  }
  shapes.at("model.diffusion_model.input_blocks.0.0.weight")[1] = 3;
  shapes.at("model.diffusion_model.out.2.weight")[0] = 3;
  EXPECT_EQ(models::find_compvis_unet(shapes, "file")->unet.heads, (std::vector<int64_t>{1, 2}));
}

TEST_F(LatentDiffusionWordsTest, WhatIsMissingOrDoesNotFitIsNamed) {
  write_folder();
  json config = json::parse(expected().metadata("bert"));
  config["max_position_embeddings"] = 40;
  write(folder() / "bert/config.json", config.dump());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts(folder()); }),
              HasSubstr("reads 40 tokens, but captions have 77"));
  config["activation_function"] = "mish";
  write(folder() / "bert/config.json", config.dump());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts(folder()); }),
              HasSubstr("activation_function names an activation \"mish\""));
  write(folder() / "bert/config.json", expected().metadata("bert"));
  std::ofstream(folder() / "tokenizer" / kVocabulary) << "[PAD]\n[UNK]\na\n";
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts(folder()); }),
              HasSubstr("must have the token \"[SEP]\""));
  fs::remove_all(folder() / "bert");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts(folder()); }),
              HasSubstr((folder() / "bert").string()));
}

TEST_F(LatentDiffusionWordsTest, TextsBeyondThePositionsAreRefused) {
  write_folder();
  const auto encoder = pipelines::open_text_encoder(folder(), {});
  EXPECT_EQ(encoder->kind(), "BERT");
  EXPECT_EQ(encoder->piece(), 77);
  const models::TextTokens tokens{.ids = std::vector<int64_t>(78, 2), .lengths = {78}};
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return encoder->encode(tokens).lengths; }),
              HasSubstr("at most 77 tokens, the positions, got 78"));
}

TEST_F(LatentDiffusionWordsTest, LayoutsAreDrawnAsByTheirAuthorsTokens) {
  const WeightsFile its =
      WeightsFile::open(source_path("tests/inference/data/latent_diffusion/layouts.safetensors"));
  models::ModelConfig unet = config();
  unet.in_channels = 3;
  unet.unet.depths = {0, 2};
  unet.unet.middle_depth = 2;
  unet.unet.heads = {1, 2};
  write_file(its, unet, 3);
  std::string names;
  for (const std::string name : json::parse(its.metadata("classes"))) {
    names += name + "\n";
  }
  write(folder() / "classes.txt", names);
  const ModelRecipe published = read_recipe(file(), kOnCpu);
  EXPECT_EQ(published.model.height, 64);
  EXPECT_EQ(published.model.text_tokens, 11);
  EXPECT_EQ(published.model.unet.heads, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(published.objective.beta_end, 0.0205);
  EXPECT_EQ(published.sample.sampling.steps, 200);
  EXPECT_EQ(published.sample.sampling.guidance, 1.0);

  const LoadOptions options = {.device = DeviceChoice::kCpu,
                               .overrides = {"model.height=4", "model.width=4"},
                               .says = false};
  const pipelines::Pipeline pipeline = pipelines::find_pipeline(file()).value();
  std::vector<std::string> layouts;
  for (const json& layout : json::parse(its.metadata("layouts"))) {
    layouts.push_back(layout.dump());
  }
  const auto encoded = [&](const std::vector<std::string>& captions) {
    return prompts_of_pipeline(pipeline, captions, read_recipe(file(), options), {.says = false});
  };
  TrainedModel trained = load_trained(file(), options);
  const Request request{.encoded = std::make_shared<Prompts>(encoded(layouts)), .seed = 5};
  expect_those_of(its, trained, Drawing(trained, {request}, {.steps = 4}).draw());

  const auto refusal = [&](const std::string& layout) {
    return error_of(ErrorKind::kConfig, [&] { return encoded({layout}); });
  };
  EXPECT_THAT(refusal(R"([{"phrase": "Dig", "box": [0, 0, 1, 1]}])"),
              AllOf(HasSubstr("one of 3 classes or a number from 0 to 198, got \"Dig\""),
                    HasSubstr("Dog")));
  EXPECT_THAT(refusal("a dog"), HasSubstr("a layout must be a list"));
}

}  // namespace latent_diffusion_words_test
}  // namespace kinora::inference
