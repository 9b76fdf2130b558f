// Multimodal diffusion transformers and their video relatives on a GPU: what diffusers drew, by the
// plain path in fp32, and near to it by the kernels of the fast path in bf16, recorded as a CUDA
// graph (fixtures of the families' pipeline tests).

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/device/device.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

namespace kinora::inference {
namespace gpu_families_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;

const fs::path kData = source_path("tests/inference/data");

struct Family {
  std::string name;
  std::string base;               ///< a folder of kData
  std::string over = {};          ///< one of which files take the place of its own
  std::string class_name = {};    ///< in model_index.json, if another
  std::string drawn = "latents";  ///< in the drawn.safetensors of `over`, or of `base`
  std::string first = {};         ///< the first frame
  std::string picture = {};       ///< in flux_pictures/: what is filled in or changed
  bool is_video = true;
};

class GpuFamiliesTest : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
    device::configure_computation(0, false);  // fp32 is fp32, as in the program
    const Family& family = GetParam();
    fs::remove_all(folder_);
    fs::copy(kData / family.base, folder_, fs::copy_options::recursive);
    if (!family.over.empty()) {
      constexpr auto kOver = fs::copy_options::recursive | fs::copy_options::overwrite_existing;
      if (fs::exists(kData / family.over / "transformer")) {
        fs::remove_all(folder_ / "transformer");
      }
      fs::copy(kData / family.over, folder_, kOver);
    }
    if (family.picture == "picture") {  // Fill's transformer lies beside its pictures
      fs::remove_all(folder_ / "transformer");
      fs::rename(folder_ / "fill", folder_ / "transformer");
    }
    if (!family.class_name.empty()) {
      std::ifstream in(folder_ / "model_index.json");
      json index = json::parse(in);
      index["_class_name"] = family.class_name;
      std::ofstream(folder_ / "model_index.json") << index;
    }
  }
  ~GpuFamiliesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] WeightsFile drawn() const {
    return WeightsFile::open(folder_ / "drawn.safetensors");
  }
  [[nodiscard]] LoadOptions options(DeviceChoice device, Precision precision) const {
    const bool is_wide = GetParam().base == "ltx";
    std::vector<std::string> size = {"model.height=8", "model.width=8"};
    if (is_wide) {
      size = {"model.frames=3", "model.height=2", "model.width=4"};
    } else if (GetParam().is_video) {
      size = {"model.frames=3", "model.height=4", "model.width=6"};
    }
    return {.device = device, .precision = precision, .overrides = size, .says = false};
  }

  [[nodiscard]] at::Tensor draw(Precision precision,
                                const std::vector<std::string>& more = {}) const {
    const Family& family = GetParam();
    const at::Device device = choose_device(DeviceChoice::kCuda);
    LoadOptions load = options(DeviceChoice::kCuda, precision);
    load.overrides.insert(load.overrides.end(), more.begin(), more.end());
    const WeightsFile expected = drawn();
    CaptionOptions texts{.says = false};
    if (const std::string negative = expected.metadata("negative"); !negative.empty()) {
      texts.negative = negative;
    }
    const auto encoded = std::make_shared<const Prompts>(prompts_of_pipeline(
        pipelines::find_pipeline(folder_).value(),
        json::parse(expected.metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(folder_, options(DeviceChoice::kCpu, Precision::kFp32)), texts));
    TrainedModel trained = load_trained(folder_, load);
    const models::ModelConfig& model = trained.recipe.model;
    const auto encoder = open_decoder(trained.recipe, {}, device);
    const std::string seed = expected.metadata("seed");
    DrawOptions draws{.steps = 4, .encoder = encoder.get()};
    const models::ShownInput input = models::shape_of(model).input;
    if (!family.first.empty() && models::shape_of(model).channels_beside == 0) {
      draws.given = {(folder_ / family.first).string()};
      draws.fps = 30.0;
    }
    Drawing drawing(trained, {{.encoded = encoded, .seed = seed.empty() ? 5 : std::stoull(seed)}},
                    draws);
    if (!family.picture.empty()) {
      const std::string picture = (folder_ / (family.picture + ".png")).string();
      const auto space = std::optional(pipelines::latent_space(folder_ / "vae"));
      const bool fills = input == models::ShownInput::kFill;
      const at::Tensor pixels = fills ? read_initial({picture}, model, space)
                                      : read_references({picture}, model, space, true);
      const at::Tensor masks =
          fills ? read_masks({(folder_ / "mask.png").string()}, {picture}, model, space)
                : at::Tensor();
      drawing.set_start({.beside = shown_beside(pixels, masks, model, encoder.get(), device)});
    } else if (!family.first.empty() && models::shape_of(model).channels_beside > 0) {
      const std::vector<EndFrames> frames =
          read_end_frames({(folder_ / family.first).string()}, "", model);
      drawing.set_start({.beside = shown_frames(frames, model, encoder.get(), device)});
    }
    return drawing.draw();
  }

  /// Of the norm of what diffusers drew.
  [[nodiscard]] double apart(const at::Tensor& latents) const {
    const at::Tensor wanted = drawn().read(GetParam().drawn);
    return ((latents - wanted).norm() / wanted.norm()).item<double>();
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("gpu-families-" + std::to_string(::getpid()));
};

TEST_P(GpuFamiliesTest, DrawAsDiffusers) {
  const double in_fp32 = apart(draw(Precision::kFp32));
  const double in_bf16 = apart(draw(Precision::kBf16));
  RecordProperty("fp32", std::to_string(in_fp32));
  RecordProperty("bf16", std::to_string(in_bf16));
  EXPECT_LT(in_fp32, 1e-4);
  EXPECT_LT(in_bf16, 5e-2);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuFamiliesTest,
                         testing::Values(Family{.name = "flux", .base = "flux", .is_video = false},
                                         Family{.name = "sd3", .base = "sd3", .is_video = false},
                                         Family{.name = "fill",
                                                .base = "flux",
                                                .over = "flux_pictures",
                                                .class_name = "FluxFillPipeline",
                                                .drawn = "latents.fill",
                                                .picture = "picture",
                                                .is_video = false},
                                         Family{.name = "kontext",
                                                .base = "flux",
                                                .over = "flux_pictures",
                                                .class_name = "FluxKontextPipeline",
                                                .drawn = "latents.kontext",
                                                .picture = "reference",
                                                .is_video = false},
                                         Family{.name = "hunyuan_video", .base = "hunyuan_video"},
                                         Family{.name = "cogvideox", .base = "cogvideox"},
                                         Family{.name = "cogvideox_i2v",
                                                .base = "cogvideox",
                                                .over = "cogvideox_i2v",
                                                .first = "first.png"},
                                         Family{.name = "wan", .base = "wan"},
                                         Family{.name = "ltx", .base = "ltx"},
                                         Family{.name = "ltx_i2v",
                                                .base = "ltx",
                                                .class_name = "LTXImageToVideoPipeline",
                                                .drawn = "latents.given",
                                                .first = "first.png"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace gpu_families_test
}  // namespace kinora::inference
