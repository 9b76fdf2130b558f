// IP-Adapters and ControlNets on a GPU: what diffusers drew, in fp32 and in 16 bits, recorded as
// CUDA graphs and not (fixtures of ip_adapter_test.cc and sd_pictures_test.cc).

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/device/device.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/setup.h"
#include "kinora/pipelines/ip_adapter_file.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::inference {
namespace gpu_pictures_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;

const fs::path kData = source_path("tests/inference/data");
const fs::path kPictures = kData / "sd_pictures";

std::string picture(const std::string& name) {
  return (kPictures / (name + ".png")).string();
}

struct Shown {
  std::string name;
  std::string pipeline = "sd1";
  std::string adapter = {};  ///< of ip_adapter/
  int64_t controlnets = 0;

  [[nodiscard]] at::Tensor expected() const {
    return adapter.empty()
               ? WeightsFile::open(kPictures / "drawn.safetensors").read("latents." + name)
               : WeightsFile::open(kData / "ip_adapter/expected.safetensors")
                     .read(name + ".latents");
  }
};

class GpuPicturesTest : public testing::TestWithParam<Shown> {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
    device::configure_computation(0, false);  // fp32 is fp32, as in the program
    fs::remove_all(folder_);
    fs::copy(kData / GetParam().pipeline, folder_, fs::copy_options::recursive);
    if (GetParam().controlnets > 0) {
      std::ofstream(folder_ / "scheduler/scheduler_config.json")
          << WeightsFile::open(kPictures / "drawn.safetensors").metadata("ddim");
    }
  }
  ~GpuPicturesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] at::Tensor draw(Precision precision, bool graphs) const {
    const Shown& shown = GetParam();
    const at::Device device = choose_device(DeviceChoice::kCuda);
    LoadOptions options{.device = DeviceChoice::kCuda, .precision = precision, .says = false};
    if (!shown.adapter.empty()) {
      options.ip_adapter = (kData / "ip_adapter" / shown.adapter).string();
      options.ip_scale = 0.6;
    }
    for (int64_t i = 0; i < shown.controlnets; ++i) {
      options.controlnets.push_back(
          (kPictures / (i == 0 ? "controlnet" : "controlnet_1")).string());
      options.control_scales.push_back(i == 0 ? 1.0 : 0.5);
    }
    const WeightsFile own = WeightsFile::open(kData / shown.pipeline / "drawn.safetensors");
    auto captions = json::parse(own.metadata("prompts")).get<std::vector<std::string>>();
    captions.resize(2);
    const auto encoded = std::make_shared<Prompts>(
        prompts_of_pipeline(pipelines::find_pipeline(folder_).value(), captions,
                            read_recipe(folder_, options), {.says = false}));
    TrainedModel trained = load_trained(folder_, options);
    EXPECT_TRUE(trained.graphs || precision == Precision::kFp32);
    trained.graphs = graphs;
    DrawStart start;
    const std::vector<std::string> pictures = {picture("control"), picture("control_1")};
    if (shown.controlnets > 0) {
      start.control = read_controls(pictures, trained.recipe.model);
    } else {
      start.image_prompts = pipelines::encode_image_prompts(
          read_image_prompts(pictures, trained.recipe.model), kData / "ip_adapter/image_encoder",
          trained.recipe.model, device);
    }
    Request request{.encoded = encoded, .seed = 5};
    if (shown.controlnets == 0) {
      request.guidance = 7.5;
    }
    Drawing drawing(trained, {request}, {.steps = 4});
    drawing.set_start(start);
    return drawing.draw().cpu();
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("gpu-pictures-" + GetParam().name);
};

double relative(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).norm() / wanted.norm()).item<double>();
}

TEST_P(GpuPicturesTest, LatentsAreThoseOfDiffusersInEveryPrecision) {
  const at::Tensor wanted = GetParam().expected();
  EXPECT_LT(relative(draw(Precision::kFp32, false), wanted), tolerance::kWholeModel);
  for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
    const at::Tensor recorded = draw(precision, true);
    // Guidance multiplies what bf16 rounds off.
    const double times = precision == Precision::kBf16 ? 2.0 : 1.0;
    EXPECT_LT(relative(recorded, wanted), times * tolerance::kWholeModelInBf16);
    EXPECT_TRUE(at::equal(recorded, draw(precision, false)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shown, GpuPicturesTest,
    testing::Values(Shown{.name = "sd1", .adapter = "sd1.safetensors"},
                    Shown{.name = "plus", .adapter = "plus.safetensors"},
                    Shown{.name = "sdxl", .pipeline = "sdxl", .adapter = "sdxl.safetensors"},
                    Shown{.name = "controls", .controlnets = 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace gpu_pictures_test
}  // namespace kinora::inference
