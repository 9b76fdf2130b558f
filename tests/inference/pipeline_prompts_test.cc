#include "kinora/inference/pipeline_prompts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/new_zeros.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/ops/random.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

// The folders are diffusers', and drawn.safetensors what it draws with them:
// tools/reference/make_pipeline_fixtures.py.

namespace kinora::inference {
namespace pipeline_prompts_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::HasSubstr;

const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};

class PipelinePromptsTest : public testing::TestWithParam<const char*> {
 protected:
  PipelinePromptsTest() {
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
  }
  ~PipelinePromptsTest() override { fs::remove_all(scratch_); }

  static fs::path folder(const std::string& name = GetParam()) {
    return source_path("tests/inference/data") / name;
  }
  static WeightsFile drawn() { return WeightsFile::open(folder() / "drawn.safetensors"); }
  static std::vector<std::string> captions() {
    return json::parse(drawn().metadata("prompts")).get<std::vector<std::string>>();
  }
  static Prompts prompts(const CaptionOptions& options, const fs::path& path = folder()) {
    return prompts_of_pipeline(pipelines::find_pipeline(path).value(), captions(),
                               read_recipe(path, kOnCpu), options);
  }
  static bool is_latte() { return std::string(GetParam()) == "latte"; }
  /// Stable Diffusion.
  static bool is_sd() { return std::string(GetParam()).starts_with("sd") || is_refiner(); }
  static bool is_refiner() { return std::string(GetParam()) == "refiner"; }
  static bool is_sdxl() { return std::string(GetParam()) == "sdxl" || is_refiner(); }
  /// A folder of its text encoder.
  static std::string encoder() { return is_sdxl() ? "text_encoder_2" : "text_encoder"; }
  static double guidance() { return is_sdxl() ? 5.0 : is_latte() || is_sd() ? 7.5 : 4.5; }
  static const char* denoiser() { return is_sd() ? "unet" : "transformer"; }
  static int64_t most_tokens() {
    return is_sd() ? 77 : std::string(GetParam()) == "pixart_sigma" ? 300 : 120;
  }
  static CaptionOptions quiet() {
    return {.negative = drawn().metadata("negative"), .says = false};
  }

  /// A copy of the pipeline that a test may change.
  [[nodiscard]] fs::path copy() const {
    const fs::path path = scratch_ / "pipeline";
    fs::remove_all(path);
    fs::copy(folder(), path, fs::copy_options::recursive);
    return path;
  }
  static void set(const fs::path& file, const json& changes) {
    std::ifstream in(file);
    json values = json::parse(in);
    values.update(changes);
    std::ofstream(file) << values;
  }

 private:
  fs::path scratch_ =
      fs::path(testing::TempDir()) / ("pipeline-prompts-" + std::to_string(::getpid()));
};

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(Pipelines, PipelinePromptsTest,
                         testing::Values("pixart_alpha", "pixart_sigma", "latte", "sd1", "sd2",
                                         "sdxl", "refiner"),
                         name_of);

TEST_P(PipelinePromptsTest, AnEncoderThatDoesNotFitIsStreamedAndGivesTheSame) {
  const Prompts whole = prompts(quiet());
  CaptionOptions little = quiet();
  little.memory_gib = 1e-6;  // a kilobyte
  little.says = true;
  testing::internal::CaptureStderr();
  const Prompts streamed = prompts(little);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the memory budget is 1 KiB"));
  ASSERT_EQ(streamed.all.size(), whole.all.size());
  for (size_t i = 0; i < whole.all.size(); ++i) {
    EXPECT_EQ(streamed.all[i].text.tokens, whole.all[i].text.tokens);
  }
}

TEST_P(PipelinePromptsTest, StatesAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  const at::Tensor states = expected.read("states");
  const at::Tensor lengths = expected.read("lengths");
  const Prompts ours = prompts(quiet());
  std::vector<data::Text> texts;
  for (const Prompt& prompt : ours.all) {
    texts.push_back(prompt.text);
  }
  texts.push_back(ours.negative.value());
  ASSERT_EQ(std::ssize(texts), lengths.numel());
  EXPECT_EQ(ours.shape.length, most_tokens());
  if (!is_latte()) {
    EXPECT_EQ(texts[2].length, ours.shape.length);  // cut off there
  }
  int64_t first = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto length = lengths[static_cast<int64_t>(i)].item<int64_t>();
    if (is_latte() && i + 1 == texts.size()) {
      // Of the negative caption's padded states only those are there that a prompt reads.
      ASSERT_EQ(texts[i].length, std::max(texts[0].length, texts[1].length));
      ASSERT_EQ(length, ours.shape.length);
    } else {
      ASSERT_EQ(texts[i].length, length) << i;
    }
    at::Tensor padded = states.new_zeros({ours.shape.length, ours.shape.channels});
    padded.narrow(0, 0, texts[i].length).copy_(states.narrow(0, first, texts[i].length));
    const at::Tensor own = at::tensor(texts[i].tokens).view_as(padded);
    EXPECT_LT(((own - padded).norm() / padded.norm()).item<double>(), 5e-6) << i;
    EXPECT_EQ(
        own.narrow(0, texts[i].length, own.size(0) - texts[i].length).abs().sum().item<double>(),
        0.0);
    first += length;
  }
  for (size_t i = 0; is_sdxl() && i < texts.size(); ++i) {
    const at::Tensor pooled = expected.read("pooled")[static_cast<int64_t>(i)];
    const at::Tensor own = at::tensor(texts[i].pooled);
    EXPECT_LT(((own - pooled).norm() / pooled.norm()).item<double>(), 5e-6) << i;
  }
}

TEST_P(PipelinePromptsTest, PicturesAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  const uint64_t seed = std::stoull(expected.metadata("seed"));
  const at::Tensor noise = expected.read("noise");
  ASSERT_LT((ops::random_normal(noise.sizes(), at::arange(noise.size(0), at::kLong), seed, 0,
                                RandomPurpose::kInitialNoise, at::kCPU) -
             noise)
                .abs()
                .max()
                .item<double>(),
            2e-6);
  const Prompts encoded = prompts(quiet());
  TrainedModel trained = load_trained(folder(), kOnCpu);
  EXPECT_EQ(trained.recipe.sample.sampling.steps, is_latte() || is_sd() ? 50 : 20);
  EXPECT_EQ(trained.recipe.sample.sampling.guidance, guidance());
  Drawing drawing(trained, {{.encoded = std::make_shared<Prompts>(encoded), .seed = seed}},
                  {.steps = 4});
  const at::Tensor latents = drawing.draw();
  const at::Tensor wanted = expected.read("latents");
  EXPECT_LT(((latents - wanted).norm() / wanted.norm()).item<double>(), 1e-4);
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents, expected.read("pictures"));

  if (is_sdxl()) {  // without a negative caption: zeros, but of the refiner the empty caption
    CaptionOptions options = quiet();
    options.negative = "";
    const at::Tensor unguided = expected.read("unguided");
    const at::Tensor drawn =
        Drawing(trained, {{.encoded = std::make_shared<Prompts>(prompts(options)), .seed = seed}},
                {.steps = 4})
            .draw();
    EXPECT_LT(((drawn - unguided).norm() / unguided.norm()).item<double>(), 1e-4);
  }

  // What the conditions are matters that much.
  Prompts others = encoded;
  std::swap(others.all[0], others.all[1]);
  Prompts unguided = encoded;
  unguided.negative.reset();
  for (const Prompts& changed : {others, unguided}) {
    const at::Tensor other =
        Drawing(trained, {{.encoded = std::make_shared<Prompts>(changed), .seed = seed}},
                {.steps = 4})
            .draw();
    EXPECT_GT(((other - wanted).norm() / wanted.norm()).item<double>(), 1e-2);
  }
}

TEST_P(PipelinePromptsTest, OtherSchedulersOfTheFolderDrawAsInDiffusers) {
  const WeightsFile expected = drawn();
  const fs::path path = copy();
  const Prompts encoded = prompts(quiet());
  int64_t count = 0;
  for (const std::string& name : expected.names()) {
    if (!name.starts_with("latents.")) {
      continue;
    }
    SCOPED_TRACE(name);
    std::ofstream(path / "scheduler/scheduler_config.json") << expected.metadata(name);
    TrainedModel trained = load_trained(path, kOnCpu);
    const at::Tensor latents = Drawing(trained,
                                       {{.encoded = std::make_shared<Prompts>(encoded),
                                         .seed = std::stoull(expected.metadata("seed"))}},
                                       {.steps = 4})
                                   .draw();
    const at::Tensor wanted = expected.read(name);
    EXPECT_LT(((latents - wanted).norm() / wanted.norm()).item<double>(), 1e-4);
    ++count;
  }
  EXPECT_EQ(count, is_sd() && !is_sdxl() ? 3 : 0);
}

TEST_P(PipelinePromptsTest, CaptionsAreCleanedOrNot) {
  const Prompts cleaned = prompts({.says = false});
  const Prompts lower = prompts({.cleans = false, .says = false});
  if (is_sd()) {
    EXPECT_EQ(cleaned.all[1].text.tokens, lower.all[1].text.tokens);
    EXPECT_THAT(cleaned.origin, HasSubstr("as written"));
    return;
  }
  EXPECT_EQ(cleaned.all[0].text.tokens, lower.all[0].text.tokens);
  EXPECT_NE(cleaned.all[1].text.length, lower.all[1].text.length);  // tags and an address
  EXPECT_NE(cleaned.origin, lower.origin);
}

TEST_P(PipelinePromptsTest, MissingPartsAreNamedWithTheirPaths) {
  const std::string config = std::string(denoiser()) + "/config.json";
  std::vector<std::string> parts = {config, "scheduler/scheduler_config.json"};
  if (!is_sdxl()) {
    parts.insert(parts.end(), {"tokenizer", "text_encoder", "text_encoder/config.json"});
  }
  for (const std::string& part : parts) {
    const fs::path path = copy();
    fs::remove_all(path / part);
    EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts(quiet(), path); }),
                HasSubstr((path / part).string()));
  }
  const fs::path path = copy();
  fs::remove_all(path / "vae");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return decoder_path(read_recipe(path, kOnCpu), {}); }),
              HasSubstr((path / "vae").string()));
}

TEST_P(PipelinePromptsTest, WhatDoesNotFitIsRefusedBeforeWeightsAreRead) {
  const auto refusal = [&](const json& changes) {
    const fs::path path = copy();
    set(path / encoder() / "config.json", changes);
    for (const auto& entry : fs::directory_iterator(path / encoder())) {
      if (entry.path().filename() != "config.json") {
        fs::remove(entry.path());
      }
    }
    return error_of(ErrorKind::kConfig, [&] { return prompts(quiet(), path); });
  };
  if (is_sdxl()) {
    EXPECT_THAT(refusal({{"hidden_size", 24}}), HasSubstr("channels, but UNet takes "));
    EXPECT_THAT(refusal({{"projection_dim", 8}}),
                HasSubstr("pooled vectors of 8 numbers, but UNet takes 10"));
    EXPECT_THAT(refusal({{"model_type", "t5"}, {"d_model", 8}}),
                HasSubstr(is_refiner() ? "text_encoder_2\" must be a CLIP, as SDXL's"
                                       : "is a T5 and CLIP, but UNet reads CLIP's states"));
  } else {
    EXPECT_THAT(refusal({{is_sd() ? "hidden_size" : "d_model", 24}}),
                AllOf(HasSubstr("states of 24 channels, but "), HasSubstr(" takes 16 (")));
    EXPECT_THAT(refusal({{"vocab_size", 500}}), HasSubstr("has a vocabulary of 500"));
  }
  if (is_sdxl()) {
    EXPECT_THAT(refusal({{"architectures", {"CLIPTextModel"}}}),
                HasSubstr("must be a CLIPTextModelWithProjection"));
  } else if (is_sd()) {
    EXPECT_THAT(refusal({{"max_position_embeddings", 40}}),
                HasSubstr("reads 40 tokens, but captions have 77"));
  } else {
    EXPECT_THAT(refusal({{"model_type", "clip_text_model"}}), HasSubstr("reads T5's states"));
  }

  const fs::path path = copy();
  const fs::path config = path / denoiser() / "config.json";
  fs::copy(folder("dit") / "transformer/config.json", config, fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path, kOnCpu); }),
              AllOf(HasSubstr(config.string()), HasSubstr("of architecture dit, but that of a")));
}

TEST_P(PipelinePromptsTest, AnAutoencoderOfOtherLatentsIsRefusedWithBothNumbers) {
  const fs::path path = copy();
  set(path / denoiser() / "config.json", {{"in_channels", 3}, {"out_channels", 6}});
  const ModelRecipe recipe = [&] {
    const fs::path weights = path / denoiser() / "diffusion_pytorch_model.safetensors";
    fs::remove(weights);
    fs::copy(path / "vae/diffusion_pytorch_model.safetensors", weights);
    return read_recipe(path, kOnCpu);
  }();
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { check_decoder(recipe, {}); }),
              AllOf(HasSubstr((path / "vae").string()), HasSubstr("of 4 channels"),
                    HasSubstr("the model draws 3")));
}

TEST_P(PipelinePromptsTest, OtherPipelinesAreNotKnown) {
  const fs::path path = copy();
  set(path / "model_index.json", {{"_class_name", "KandinskyPipeline"}});
  EXPECT_FALSE(pipelines::find_pipeline(path).has_value());
  EXPECT_FALSE(pipelines::find_pipeline(path / "vae").has_value());
  std::ofstream(path / "model_index.json") << "[";
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return pipelines::find_pipeline(path); }),
              HasSubstr("model_index.json"));
}

}  // namespace pipeline_prompts_test
}  // namespace kinora::inference
