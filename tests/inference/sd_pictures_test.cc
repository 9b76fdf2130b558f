// What U-Nets of Stable Diffusion draw that are given pictures, compared with diffusers:
// tools/reference/make_picture_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
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
#include "kinora/io/image.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

namespace kinora::inference {
namespace sd_pictures_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kSd1 = source_path("tests/inference/data/sd1");
const fs::path kPictures = source_path("tests/inference/data/sd_pictures");
constexpr int64_t kSteps = 4;
constexpr uint64_t kSeed = 5;

std::string picture(const std::string& name) {
  return (kPictures / (name + ".png")).string();
}

/// What is drawn: a pipeline, with another U-Net and ControlNets beside it.
struct Drawn {
  std::string name;  // in drawn.safetensors
  std::string pipeline = "StableDiffusionPipeline";
  std::string unet = {};  // of sd_pictures; empty: sd1's
  bool masked = false;
  bool given = true;
  double strength = 1.0;
  std::vector<double> scales = {};  // of ControlNets
};

std::string name_of(const testing::TestParamInfo<Drawn>& info) {
  return info.param.name;
}

class SdPicturesTest : public testing::TestWithParam<Drawn> {
 protected:
  SdPicturesTest() {
    fs::remove_all(folder_);
    fs::copy(kSd1, folder_, fs::copy_options::recursive);
  }
  ~SdPicturesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] const fs::path& folder() const { return folder_; }
  /// The folder becomes the pipeline of `drawn`.
  void set_pipeline(const Drawn& drawn) const {
    std::ifstream in(folder_ / "model_index.json");
    json index = json::parse(in);
    index["_class_name"] = drawn.pipeline;
    std::ofstream(folder_ / "model_index.json") << index;
    if (!drawn.unet.empty()) {
      fs::remove_all(folder_ / "unet");
      fs::copy(kPictures / drawn.unet, folder_ / "unet", fs::copy_options::recursive);
    }
  }
  static LoadOptions options_of(const Drawn& drawn) {
    LoadOptions options{.device = DeviceChoice::kCpu, .says = false};
    for (size_t i = 0; i < drawn.scales.size(); ++i) {
      options.controlnets.push_back(
          (kPictures / (i == 0 ? "controlnet" : "controlnet_1")).string());
    }
    options.control_scales = drawn.scales;
    return options;
  }
  /// Draws as the scheduler in the folder says.
  [[nodiscard]] at::Tensor draw(const Drawn& drawn) const {
    const LoadOptions options = options_of(drawn);
    const auto pipeline = pipelines::find_pipeline(folder_).value();
    const WeightsFile sd1 = WeightsFile::open(kSd1 / "drawn.safetensors");
    auto prompts = json::parse(sd1.metadata("prompts")).get<std::vector<std::string>>();
    prompts.resize(2);
    const auto encoded = std::make_shared<Prompts>(
        prompts_of_pipeline(pipeline, prompts, read_recipe(folder_, options), {.says = false}));
    TrainedModel trained = load_trained(folder_, options);
    const models::ModelConfig& model = trained.recipe.model;
    const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
    const std::optional<models::LatentSpace> space = encoder->space();
    DrawStart start{.strength = drawn.strength};
    if (!drawn.scales.empty()) {
      std::vector<std::string> controls = {picture("control"), picture("control_1")};
      controls.resize(drawn.scales.size());
      start.control = read_controls(controls, model);
    }
    if (drawn.given) {
      const at::Tensor pixels = read_initial({picture("picture")}, model, space);
      at::Tensor masks;
      if (drawn.masked) {
        masks = read_masks({picture("mask")}, {picture("picture")}, model, space);
      }
      start.beside = shown_beside(pixels, masks, model, encoder.get(), at::kCPU);
      if (drawn.unet.empty() || drawn.strength < 1.0) {
        start.data = as_drawn(pixels, encoder.get(), at::kCPU);
      }
      if (drawn.unet.empty() && drawn.masked) {
        start.mask = mask_of_drawn(masks, model);
      }
    }
    Drawing drawing(trained, {{.encoded = encoded, .seed = kSeed}}, {.steps = kSteps});
    drawing.set_start(start);
    return drawing.draw();
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("sd-pictures-" + std::to_string(::getpid()));
};

const Drawn kInpaint = {.name = "inpaint",
                        .pipeline = "StableDiffusionInpaintPipeline",
                        .unet = "inpaint",
                        .masked = true};
const Drawn kEdit = {
    .name = "edit", .pipeline = "StableDiffusionInstructPix2PixPipeline", .unet = "edit"};
const Drawn kControls = {.name = "controls", .given = false, .scales = {1.0, 0.5}};

INSTANTIATE_TEST_SUITE_P(
    Pipelines, SdPicturesTest,
    testing::Values(kInpaint,
                    Drawn{.name = "inpaint_part",
                          .pipeline = "StableDiffusionInpaintPipeline",
                          .unet = "inpaint",
                          .masked = true,
                          .strength = 0.6},
                    Drawn{.name = "repaint", .masked = true},
                    Drawn{.name = "repaint_part", .masked = true, .strength = 0.6}, kEdit,
                    Drawn{.name = "control", .given = false, .scales = {0.75}}, kControls),
    name_of);

TEST_P(SdPicturesTest, PicturesAreThoseOfDiffusers) {
  const WeightsFile expected = WeightsFile::open(kPictures / "drawn.safetensors");
  const Drawn& drawn = GetParam();
  set_pipeline(drawn);
  const auto set_scheduler = [&](const std::string& name) {
    std::ofstream(folder() / "scheduler/scheduler_config.json") << expected.metadata(name);
  };
  set_scheduler("ddim");
  const at::Tensor latents = draw(drawn);
  const at::Tensor wanted = expected.read("latents." + drawn.name);
  EXPECT_LT(((latents - wanted).norm() / wanted.norm()).item<double>(), 1e-4);
  const auto decoder = pipelines::open_autoencoder(folder() / "vae", at::kCPU, at::kFloat);
  expect_pictures(*decoder, latents.narrow(0, 0, 1), expected.read("pictures." + drawn.name));

  for (const char* scheduler : {"dpm", "euler", "heun", "plms"}) {
    const std::string name = "latents." + drawn.name + "." + scheduler;
    if (!expected.contains(name)) {
      continue;
    }
    SCOPED_TRACE(name);
    set_scheduler(scheduler);
    const at::Tensor other = expected.read(name);
    EXPECT_LT(((draw(drawn) - other).norm() / other.norm()).item<double>(), 1e-4);
  }
}

/// A picture of one colour, or of a grey one.
std::string write_plain(const fs::path& path, int64_t height, int64_t width, uint8_t red) {
  io::Image image;
  io::set_size(image, height, width);
  std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{255});
  image.pixels.front() = red;
  io::write_png(path, image);
  return path.string();
}

class SdPictureErrorsTest : public SdPicturesTest {
 protected:
  [[nodiscard]] models::ModelConfig model() const { return read_recipe(folder(), {}).model; }
  /// What a ControlNet whose configuration has `changes` is refused with.
  [[nodiscard]] std::string refusal(const json& changes) const {
    fs::remove_all(folder() / "other");
    fs::copy(kPictures / "controlnet", folder() / "other", fs::copy_options::recursive);
    std::ifstream in(folder() / "other/config.json");
    json config = json::parse(in);
    config.update(changes);
    std::ofstream(folder() / "other/config.json") << config;
    return error_of(ErrorKind::kConfig, [&] {
      return read_recipe(
          folder(), {.device = DeviceChoice::kCpu, .controlnets = {(folder() / "other").string()}});
    });
  }
};

TEST_F(SdPictureErrorsTest, MasksAndControlsOfAnotherSizeOrColourAreNamed) {
  const std::optional<models::LatentSpace> space = pipelines::latent_space(kSd1 / "vae");
  const auto masks = [&](const std::string& path) {
    return error_of(ErrorKind::kConfig,
                    [&] { return read_masks({path}, {picture("picture")}, model(), space); });
  };
  const std::string small = write_plain(folder() / "small.png", 64, 32, 255);
  EXPECT_THAT(masks(small), AllOf(HasSubstr(small), HasSubstr(picture("picture")),
                                  HasSubstr("64 x 64, got 32 x 64")));
  const std::string red = write_plain(folder() / "red.png", 64, 64, 0);
  EXPECT_THAT(masks(red), AllOf(HasSubstr(red), HasSubstr("got colours")));
  const models::ModelConfig controlled = read_recipe(folder(), options_of(kControls)).model;
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return read_controls({red, small}, controlled);
                       }),
              AllOf(HasSubstr(small), HasSubstr("64 x 64, got 32 x 64")));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_controls({red}, controlled); }),
              HasSubstr("each of 2 ControlNets, got 1"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_controls({red}, model()); }),
              HasSubstr("no ControlNet"));
}

TEST_F(SdPictureErrorsTest, ControlNetsOfAnotherUnetOrKindAreRefusedByName) {
  const std::vector<std::pair<const char*, json>> changes = {
      {"block_out_channels", {8, 24}},
      {"layers_per_block", 2},
      {"down_block_types", {"CrossAttnDownBlock2D", "CrossAttnDownBlock2D"}},
      {"mid_block_type", "UNetMidBlock2D"},
      {"attention_head_dim", 4},
      {"norm_num_groups", 2},
      {"norm_eps", 1e-3},
      {"cross_attention_dim", 24},
      {"in_channels", 9},
      {"conditioning_channels", 1},
      {"controlnet_conditioning_channel_order", "bgr"},
      {"global_pool_conditions", true},
      {"conditioning_embedding_out_channels", {4, 8}},
      {"addition_embed_type", "text_time"},
      {"addition_time_embed_dim", 256},
      {"class_embed_type", "timestep"},
      {"encoder_hid_dim_type", "text_proj"},
      {"only_cross_attention", true},
      {"resnet_time_scale_shift", "scale_shift"},
      {"_class_name", "ControlNetXSAdapter"}};
  for (const auto& [key, value] : changes) {
    EXPECT_THAT(refusal({{key, value}}), AllOf(HasSubstr(key), HasSubstr("other/config.json")));
  }
  EXPECT_THAT(refusal({{"block_out_channels", {8, 24}}}), HasSubstr("[8,16], got [8,24]"));
}

TEST_F(SdPictureErrorsTest, PartsThatDoNotBelongTogetherAreNamed) {
  set_pipeline({.name = "", .pipeline = kEdit.pipeline});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(folder(), {}); }),
              AllOf(HasSubstr("unet/config.json"), HasSubstr("InstructPix2Pix")));
  set_pipeline({.name = "", .unet = "edit"});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(folder(), {}); }),
              HasSubstr("is shown a picture to change"));
  set_pipeline({.name = "", .pipeline = "StableDiffusionControlNetPipeline"});
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return read_recipe(folder(), {}); }),
              HasSubstr((folder() / "controlnet/config.json").string()));
}

// A pipeline brings its own, in the order of its folders.
TEST_F(SdPictureErrorsTest, AFolderWithControlNetsIsDrawnWithThem) {
  Drawn drawn = kControls;
  drawn.pipeline = "StableDiffusionControlNetPipeline";
  for (const char* name : {"controlnet", "controlnet_1"}) {
    fs::copy(kPictures / name, folder() / name, fs::copy_options::recursive);
  }
  set_pipeline(drawn);
  LoadOptions options = options_of(drawn);
  options.controlnets.clear();
  const TrainedModel own = load_trained(folder(), options);
  const TrainedModel given = load_trained(kSd1, options_of(drawn));
  const auto names = own.model->named_parameters();
  ASSERT_EQ(names.size(), given.model->named_parameters().size());
  for (const nn::NamedParameter& named : names) {
    EXPECT_TRUE(at::equal(own.arena->export_parameter(named.path, optim::Role::compute()),
                          given.arena->export_parameter(named.path, optim::Role::compute())))
        << named.path;
  }
}

}  // namespace sd_pictures_test
}  // namespace kinora::inference
