// What SDXL computes and draws with ControlNets, compared with diffusers:
// tools/reference/make_sdxl_control_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

namespace kinora::inference {
namespace sdxl_controls_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kData = source_path("tests/inference/data");
const fs::path kSdxl = kData / "sdxl";
const fs::path kControls = kData / "sdxl_controls";

double relative(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).norm() / wanted.norm()).item<double>();
}

/// With as many ControlNets as scales.
LoadOptions options_of(const std::vector<double>& scales, const std::string& path = "auto") {
  LoadOptions options{
      .device = DeviceChoice::kCpu, .overrides = {"model.path=" + path}, .says = false};
  for (size_t i = 0; i < scales.size(); ++i) {
    options.controlnets.push_back((kControls / (i == 0 ? "controlnet" : "controlnet_1")).string());
  }
  options.control_scales = scales;
  return options;
}

at::Tensor shown(size_t count, const models::ModelConfig& model) {
  std::vector<std::string> paths = {(kData / "sd_pictures/control.png").string(),
                                    (kData / "sd_pictures/control_1.png").string()};
  paths.resize(count);
  return read_controls(paths, model);
}

TEST(SdxlControlsTest, APassIsThatOfDiffusersOnBothPaths) {
  const WeightsFile file = WeightsFile::open(kControls / "expected.safetensors");
  const at::Tensor sizes = file.read("sizes");
  diffusion::Conditions conditions{.text = file.read("text"),
                                   .pooled = file.read("pooled"),
                                   .height = sizes.select(1, 4),
                                   .width = sizes.select(1, 5),
                                   .original_size = sizes.narrow(1, 0, 2),
                                   .crop = sizes.narrow(1, 2, 2)};
  const at::NoGradGuard no_grad;
  for (const char* path : {"plain", "fast"}) {
    SCOPED_TRACE(path);
    const TrainedModel trained = load_trained(kSdxl, options_of({1.0, 0.5}, path));
    conditions.control = shown(2, trained.recipe.model).expand({2, -1, -1, -1});
    const at::Tensor x = file.read("x");
    const at::Tensor t = file.read("t");
    const at::Tensor out = file.read("out");
    EXPECT_LT(relative(trained.model->forward(x, t, conditions), out), 1e-5);
    const at::Tensor one_time = t.narrow(0, 0, 1);
    const diffusion::Prepared prepared = trained.model->prepare(one_time, conditions);
    const at::Tensor at_once = trained.model->forward(
        x, one_time.expand({2}).contiguous(), conditions, {.prepared = prepared.at_time(0)});
    EXPECT_LT(relative(at_once.narrow(0, 0, 1), out.narrow(0, 0, 1)), 1e-5);
  }
}

TEST(SdxlControlsTest, PicturesAreThoseOfDiffusers) {
  const WeightsFile file = WeightsFile::open(kControls / "expected.safetensors");
  const WeightsFile sdxl = WeightsFile::open(kSdxl / "drawn.safetensors");
  auto captions = json::parse(sdxl.metadata("prompts")).get<std::vector<std::string>>();
  captions.resize(2);
  for (const auto& [name, scales] : {std::pair{std::string("control"), std::vector{0.75}},
                                     std::pair{std::string("controls"), std::vector{1.0, 0.5}}}) {
    SCOPED_TRACE(name);
    const LoadOptions options = options_of(scales);
    const auto encoded = std::make_shared<Prompts>(
        prompts_of_pipeline(pipelines::find_pipeline(kSdxl).value(), captions,
                            read_recipe(kSdxl, options), {.says = false}));
    TrainedModel trained = load_trained(kSdxl, options);
    DrawStart start;
    start.control = shown(scales.size(), trained.recipe.model);
    Drawing drawing(trained, {{.encoded = encoded, .seed = 5, .guidance = 5.0}}, {.steps = 4});
    drawing.set_start(start);
    const at::Tensor latents = drawing.draw();
    EXPECT_LT(relative(latents, file.read("latents." + name)), 1e-4);
    const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
    expect_pictures(*decoder, latents.narrow(0, 0, 1), file.read("pictures." + name));
  }
}

TEST(SdxlControlsTest, ControlNetsThatReadOtherThanTheUnetAreRefusedByName) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("sdxl-controls-" + std::to_string(::getpid()));
  const auto refusal = [&](const json& changes) {
    fs::remove_all(folder);
    fs::copy(kControls / "controlnet", folder, fs::copy_options::recursive);
    std::ifstream in(folder / "config.json");
    json config = json::parse(in);
    config.update(changes);
    std::ofstream(folder / "config.json") << config;
    LoadOptions options = options_of({1.0});
    options.controlnets = {folder.string()};
    return error_of(ErrorKind::kConfig, [&] { return read_recipe(kSdxl, options); });
  };
  EXPECT_THAT(refusal({{"addition_embed_type", nullptr}}),
              HasSubstr("addition_embed_type must be that of the U-Net, text_time, got null"));
  EXPECT_THAT(refusal({{"addition_time_embed_dim", 6}}),
              HasSubstr("addition_time_embed_dim must be that of the U-Net, 4, got 6"));
  EXPECT_THAT(
      refusal({{"projection_class_embeddings_input_dim", 40}}),
      HasSubstr("projection_class_embeddings_input_dim must be that of the U-Net, 34, got 40"));
  EXPECT_THAT(refusal({{"transformer_layers_per_block", {1, 1}}}),
              HasSubstr("transformer_layers_per_block"));
  fs::remove_all(folder);
}

// A folder of StableDiffusionXLControlNetPipeline brings its own.
TEST(SdxlControlsTest, AFolderWithControlNetsIsDrawnWithThem) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("sdxl-pipeline-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::copy(kSdxl, folder, fs::copy_options::recursive);
  for (const char* name : {"controlnet", "controlnet_1"}) {
    fs::copy(kControls / name, folder / name, fs::copy_options::recursive);
  }
  std::ifstream in(folder / "model_index.json");
  json index = json::parse(in);
  index["_class_name"] = "StableDiffusionXLControlNetPipeline";
  std::ofstream(folder / "model_index.json") << index;
  const ModelRecipe recipe = read_recipe(folder, {.device = DeviceChoice::kCpu, .says = false});
  EXPECT_EQ(recipe.model.unet.controls, 2);
  EXPECT_EQ(recipe.sample.sampling.guidance, 5.0);
  fs::remove_all(folder);
}

}  // namespace sdxl_controls_test
}  // namespace kinora::inference
