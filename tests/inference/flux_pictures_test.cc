// What Flux Fill and Kontext draw, compared with diffusers:
// tools/reference/make_flux_picture_fixtures.py.

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/io/image.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/diffusers_transformer.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

namespace kinora::inference {
namespace flux_pictures_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kFlux = source_path("tests/inference/data/flux");
const fs::path kPictures = source_path("tests/inference/data/flux_pictures");
constexpr const char* kFill = "FluxFillPipeline";
constexpr const char* kKontext = "FluxKontextPipeline";

std::string picture(const std::string& name) {
  return (kPictures / (name + ".png")).string();
}

std::string write_plain(const fs::path& path, int64_t height, int64_t width) {
  io::Image image;
  io::set_size(image, height, width);
  std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{255});
  io::write_png(path, image);
  return path.string();
}

class FluxPicturesTest : public testing::Test {
 protected:
  FluxPicturesTest() {
    fs::remove_all(folder_);
    fs::copy(kFlux, folder_, fs::copy_options::recursive);
  }
  ~FluxPicturesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] const fs::path& folder() const { return folder_; }
  /// The folder becomes a pipeline of that class, with the transformer of Fill or of Flux.
  void set_pipeline(const std::string& class_name, bool fills) const {
    std::ifstream in(folder_ / "model_index.json");
    json index = json::parse(in);
    index["_class_name"] = class_name;
    std::ofstream(folder_ / "model_index.json") << index;
    fs::remove_all(folder_ / "transformer");
    fs::copy(fills ? kPictures / "fill" : kFlux / "transformer", folder_ / "transformer",
             fs::copy_options::recursive);
  }
  static LoadOptions options() {
    return {.device = DeviceChoice::kCpu,
            .overrides = {"model.height=8", "model.width=8"},
            .says = false};
  }
  [[nodiscard]] models::ModelConfig model() const { return read_recipe(folder_, options()).model; }
  static std::optional<models::LatentSpace> space() {
    return pipelines::latent_space(kFlux / "vae");
  }
  /// Compares what is drawn with `name` of drawn.safetensors.
  void expect_drawn(const std::string& name, double strength) const {
    SCOPED_TRACE(name);
    const WeightsFile expected = WeightsFile::open(kPictures / "drawn.safetensors");
    const auto prompts = json::parse(expected.metadata("prompts")).get<std::vector<std::string>>();
    const auto encoded = std::make_shared<Prompts>(
        prompts_of_pipeline(pipelines::find_pipeline(folder_).value(), prompts,
                            read_recipe(folder_, options()), {.says = false}));
    TrainedModel trained = load_trained(folder_, options());
    const models::ModelConfig& config = trained.recipe.model;
    const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
    DrawStart start{.strength = strength};
    at::Tensor pixels;
    at::Tensor masks;
    if (models::shape_of(config).input == models::ShownInput::kFill) {
      pixels = read_initial({picture("picture")}, config, space());
      masks = read_masks({picture("mask")}, {picture("picture")}, config, space());
      if (strength < 1.0) {
        start.data = as_drawn(pixels, encoder.get(), at::kCPU);
      }
    } else {
      pixels = read_references({picture("reference")}, config, space(), /*keeps_size=*/true);
      EXPECT_EQ(pixels.sizes(), (at::IntArrayRef{1, 3, 80, 48}));
    }
    start.beside = shown_beside(pixels, masks, config, encoder.get(), at::kCPU);
    Drawing drawing(trained, {{.encoded = encoded, .seed = 5}}, {.steps = 4});
    drawing.set_start(start);
    const at::Tensor latents = drawing.draw();
    const at::Tensor wanted = expected.read("latents." + name);
    const double apart = ((latents - wanted).norm() / wanted.norm()).item<double>();
    RecordProperty("latents", std::to_string(apart));
    EXPECT_LT(apart, 1e-4);
    expect_pictures(*encoder, latents, expected.read("pictures." + name), "pictures");
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("flux-pictures-" + std::to_string(::getpid()));
};

TEST_F(FluxPicturesTest, FillDrawsAsDiffusers) {
  set_pipeline(kFill, true);
  const ModelRecipe recipe = read_recipe(folder(), options());
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.model.transformer.guidance, 30.0);
  EXPECT_EQ(models::shape_of(recipe.model).channels_beside, 4 + 64);
  expect_drawn("fill", 1.0);
  expect_drawn("fill_part", 0.5);
}

TEST_F(FluxPicturesTest, KontextDrawsAsDiffusers) {
  set_pipeline(kKontext, false);
  const ModelRecipe recipe = read_recipe(folder(), options());
  EXPECT_EQ(recipe.sample.sampling.steps, 28);
  EXPECT_EQ(recipe.model.transformer.guidance, 3.5);
  EXPECT_EQ(models::shape_of(recipe.model).input, models::ShownInput::kReference);
  expect_drawn("kontext", 1.0);
}

TEST_F(FluxPicturesTest, ReferencesTakeTheSizesOfDiffusers) {
  set_pipeline(kKontext, false);
  const WeightsFile expected = WeightsFile::open(kPictures / "drawn.safetensors");
  const auto sizes =
      json::parse(expected.metadata("reference_sizes")).get<std::vector<std::array<int64_t, 4>>>();
  EXPECT_GE(sizes.size(), 8U);
  for (const auto& [height, width, rows, columns] : sizes) {
    SCOPED_TRACE(std::to_string(height) + " x " + std::to_string(width));
    const std::string file = write_plain(folder() / "plain.png", height, width);
    EXPECT_EQ(read_references({file}, model(), space(), false).sizes(),
              (at::IntArrayRef{1, 3, rows, columns}));
  }
}

TEST_F(FluxPicturesTest, WhatDoesNotFitIsNamed) {
  set_pipeline(kKontext, false);
  const auto references = [&](const std::vector<std::string>& files) {
    return error_of(ErrorKind::kConfig,
                    [&] { return read_references(files, model(), space(), true); });
  };
  const std::string tiny = write_plain(folder() / "tiny.png", 15, 40);
  EXPECT_THAT(references({tiny}),
              AllOf(HasSubstr(tiny), HasSubstr("at least 16 x 16 pixels, got 40 x 15")));
  EXPECT_THAT(references({picture("reference"), picture("picture")}),
              HasSubstr("must have one size, got 48 x 80"));
  set_pipeline(kFill, true);
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return read_masks({picture("reference")}, {picture("picture")}, model(),
                                           space());
                       }),
              HasSubstr("64 x 64, got 53 x 90"));

  const auto refusal = [&](const std::string& class_name, bool fills) {
    set_pipeline(class_name, fills);
    return error_of(ErrorKind::kConfig, [&] { return model(); });
  };
  EXPECT_THAT(refusal(kFill, false),
              HasSubstr("does not fill in a part of a picture, but a FluxFillPipeline does"));
  EXPECT_THAT(refusal(kKontext, true),
              HasSubstr("fills in a part of a picture, but a FluxKontextPipeline does not"));
  EXPECT_THAT(refusal("FluxPipeline", true), HasSubstr("but a FluxPipeline does not"));
}

// Weights and config.json of Fill's transformer, there and back.
TEST_F(FluxPicturesTest, FillsConfigurationComesBack) {
  set_pipeline(kFill, true);
  const auto theirs = [](const fs::path& path) {
    std::ifstream in(path);
    return json::parse(in);
  };
  const json config = theirs(kPictures / "fill/config.json");
  const json ours =
      json::parse(pipelines::describe_transformer(model(), models::family_of(model())));
  for (const char* const key : {"in_channels", "out_channels", "num_layers", "num_single_layers"}) {
    EXPECT_EQ(ours[key], config[key]) << key;
  }
}

}  // namespace flux_pictures_test
}  // namespace kinora::inference
