// What U-Nets with an IP-Adapter compute and draw, compared with diffusers:
// tools/reference/make_ip_adapter_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/pipelines/ip_adapter_file.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/places.h"

namespace kinora::inference {
namespace ip_adapter_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kData = source_path("tests/inference/data");
const fs::path kAdapters = kData / "ip_adapter";
const fs::path kEncoder = kAdapters / "image_encoder";
constexpr double kScale = 0.6;

double relative(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).norm() / wanted.norm()).item<double>();
}

WeightsFile expected() {
  return WeightsFile::open(kAdapters / "expected.safetensors");
}

/// An adapter beside the U-Net of a pipeline.
struct Adapted {
  std::string name;      // in expected.safetensors
  std::string pipeline;  // a folder of kData
  std::string file;      // of kAdapters

  [[nodiscard]] LoadOptions options(const std::string& path = "auto") const {
    return {.device = DeviceChoice::kCpu,
            .overrides = {"model.path=" + path},
            .ip_adapter = (kAdapters / file).string(),
            .ip_scale = kScale,
            .says = false};
  }
  [[nodiscard]] models::ModelConfig model() const {
    return read_recipe(kData / pipeline, options()).model;
  }
  [[nodiscard]] pipelines::ImagePrompts prompts() const {
    const auto picture = [](const char* name) { return (kData / "sd_pictures" / name).string(); };
    return pipelines::encode_image_prompts(
        read_image_prompts({picture("control.png"), picture("control_1.png")}, model()), kEncoder,
        model(), at::kCPU);
  }
};

class IpAdapterTest : public testing::TestWithParam<Adapted> {};

INSTANTIATE_TEST_SUITE_P(Adapters, IpAdapterTest,
                         testing::Values(Adapted{"sd1", "sd1", "sd1.safetensors"},
                                         Adapted{"plus", "sd1", "plus.safetensors"},
                                         Adapted{"sdxl", "sdxl", "sdxl.safetensors"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(IpAdapterTest, PassesAreThoseOfDiffusersOnBothPaths) {
  const Adapted& adapted = GetParam();
  const WeightsFile file = expected();
  const auto read = [&](const char* name) { return file.read(adapted.name + "." + name); };
  const pipelines::ImagePrompts prompts = adapted.prompts();
  EXPECT_LT(relative(prompts.given, read("given")), 1e-5);
  EXPECT_LT((prompts.none - read("none")).abs().max().item<double>(), 1e-5);
  diffusion::Conditions conditions{
      .text = read("text"), .image_prompt = at::cat({prompts.given.narrow(0, 0, 1), prompts.none})};
  if (adapted.name == "sdxl") {
    const at::Tensor sizes = read("sizes");
    conditions.pooled = read("pooled");
    conditions.original_size = sizes.narrow(1, 0, 2);
    conditions.crop = sizes.narrow(1, 2, 2);
    conditions.height = sizes.select(1, 4);
    conditions.width = sizes.select(1, 5);
  }
  const at::NoGradGuard no_grad;
  for (const char* path : {"plain", "fast"}) {
    SCOPED_TRACE(path);
    const TrainedModel trained = load_trained(kData / adapted.pipeline, adapted.options(path));
    const at::Tensor x = read("x");
    const at::Tensor t = read("t");
    EXPECT_LT(relative(trained.model->forward(x, t, conditions), read("out")), 1e-5);
    // What is prepared before a drawing, for both rows at one time.
    const at::Tensor one_time = t.narrow(0, 0, 1);
    const diffusion::Prepared prepared = trained.model->prepare(one_time, conditions);
    EXPECT_EQ(prepared.of_image_prompts.empty(), std::string(path) == "plain");
    const at::Tensor at_once = trained.model->forward(
        x, one_time.expand({2}).contiguous(), conditions, {.prepared = prepared.at_time(0)});
    EXPECT_LT(relative(at_once.narrow(0, 0, 1), read("out").narrow(0, 0, 1)), 1e-5);
  }
}

TEST_P(IpAdapterTest, PicturesAreThoseOfDiffusers) {
  const Adapted& adapted = GetParam();
  const fs::path folder = kData / adapted.pipeline;
  const LoadOptions options = adapted.options();
  const WeightsFile own = WeightsFile::open(folder / "drawn.safetensors");
  auto captions = json::parse(own.metadata("prompts")).get<std::vector<std::string>>();
  captions.resize(2);
  const auto encoded = std::make_shared<Prompts>(
      prompts_of_pipeline(pipelines::find_pipeline(folder).value(), captions,
                          read_recipe(folder, options), {.says = false}));
  TrainedModel trained = load_trained(folder, options);
  Drawing drawing(trained, {{.encoded = encoded, .seed = 5, .guidance = 7.5}}, {.steps = 4});
  drawing.set_start({.image_prompts = adapted.prompts()});
  const at::Tensor latents = drawing.draw();
  const WeightsFile file = expected();
  EXPECT_LT(relative(latents, file.read(adapted.name + ".latents")), 1e-4);
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents.narrow(0, 1, 1), file.read(adapted.name + ".pictures"));
}

class IpAdapterFilesTest : public testing::Test {
 protected:
  IpAdapterFilesTest() { fs::create_directories(folder_); }
  ~IpAdapterFilesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] const fs::path& folder() const { return folder_; }
  /// What the adapter of such tensors is refused with, beside a pipeline.
  [[nodiscard]] std::string refusal(const std::map<std::string, at::Tensor>& tensors,
                                    const std::string& pipeline = "sd1") const {
    checkpoint::LateTensors all;
    for (const auto& [name, tensor] : tensors) {
      all.emplace(name, checkpoint::late_tensor(tensor));
    }
    checkpoint::write_weights(folder_ / "other.safetensors", all, {});
    return refusal_of(folder_ / "other.safetensors", pipeline);
  }
  [[nodiscard]] static std::string refusal_of(const fs::path& file, const std::string& pipeline) {
    return error_of(ErrorKind::kConfig, [&] {
      return read_recipe(kData / pipeline,
                         {.device = DeviceChoice::kCpu, .ip_adapter = file.string()});
    });
  }
  [[nodiscard]] static std::map<std::string, at::Tensor> adapter() {
    std::map<std::string, at::Tensor> tensors;
    const WeightsFile file = WeightsFile::open(kAdapters / "sd1.safetensors");
    for (const std::string& name : file.names()) {
      tensors.emplace(name, file.read(name));
    }
    return tensors;
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("ip-adapter-" + std::to_string(::getpid()));
};

TEST_F(IpAdapterFilesTest, AFileOfTorchIsReadAsASafetensorsFile) {
  const auto load = [](const char* file) {
    return load_trained(kData / "sd1", Adapted{"sd1", "sd1", file}.options());
  };
  const TrainedModel one = load("sd1.safetensors");
  const TrainedModel other = load("sd1.bin");
  for (const nn::NamedParameter& named : one.model->named_parameters()) {
    EXPECT_TRUE(at::equal(one.arena->export_parameter(named.path, optim::Role::compute()),
                          other.arena->export_parameter(named.path, optim::Role::compute())))
        << named.path;
  }
}

TEST_F(IpAdapterFilesTest, AdaptersOfOtherUnetsAreNamedByTheirFirstKey) {
  EXPECT_THAT(refusal_of(kAdapters / "sdxl.safetensors", "sd1"),
              AllOf(HasSubstr("sdxl.safetensors"), HasSubstr("image_proj.norm.weight"),
                    HasSubstr("[16] for this U-Net, got [28]")));
  EXPECT_THAT(refusal_of(kAdapters / "sd1.safetensors", "sdxl"),
              AllOf(HasSubstr("sd1.safetensors"), HasSubstr("image_proj.norm.weight"),
                    HasSubstr("[28] for this U-Net, got [16]")));
  auto tensors = adapter();
  tensors["ip_adapter.3.to_v_ip.weight"] = at::ones({16, 16});
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("ip_adapter.3.to_v_ip.weight"),
                                      HasSubstr("[8, 16] for this U-Net"), HasSubstr("[16, 16]")));
  tensors.erase("ip_adapter.3.to_v_ip.weight");
  EXPECT_THAT(refusal(tensors), HasSubstr("has no ip_adapter.3.to_v_ip.weight"));
  tensors = adapter();
  tensors["ip_adapter.9.to_k_ip.weight"] = at::ones({16, 16});
  EXPECT_THAT(refusal(tensors), HasSubstr("ip_adapter.9.to_k_ip.weight"));
  const WeightsFile plus = WeightsFile::open(kAdapters / "plus.safetensors");
  tensors.clear();
  for (const std::string& name : plus.names()) {
    tensors.emplace(name, plus.read(name));
  }
  tensors["image_proj.layers.2.0.to_kv.weight"] = at::ones({192, 8});
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("image_proj.layers.2.0.to_kv.weight"),
                                      HasSubstr("[256, 8]"), HasSubstr("got [192, 8]")));
  tensors.erase("image_proj.layers.0.0.to_q.weight");
  EXPECT_THAT(refusal(tensors), HasSubstr("has no image_proj.layers.0.0.to_q.weight"));
  EXPECT_THAT(refusal_of(kAdapters / "sd1.safetensors", "pixart_alpha"), HasSubstr("for U-Nets"));
}

TEST_F(IpAdapterFilesTest, KindsThatKinoraLacksAreNamed) {
  const at::Tensor any = at::ones({4, 4});
  const auto with = [&](const char* name, const char* other) {
    return refusal({{name, any}, {other, any}, {"image_proj.norm.weight", any}});
  };
  EXPECT_THAT(with("image_proj.proj.0.weight", "image_proj.proj.3.weight"), HasSubstr("full face"));
  EXPECT_THAT(with("image_proj.proj.0.weight", "image_proj.proj.2.weight"), HasSubstr("FaceID"));
  EXPECT_THAT(with("image_proj.perceiver_resampler.latents", "image_proj.proj.0.weight"),
              HasSubstr("FaceID"));
  EXPECT_THAT(with("down_blocks.0.weight", "conv_in.weight"), HasSubstr("is no IP-Adapter"));
  EXPECT_THAT(refusal_of(kAdapters, "sd1"), HasSubstr("name the file"));
}

TEST_F(IpAdapterFilesTest, WhatIsMissingIsNamedBeforeAnythingIsComputed) {
  const Adapted adapted{"sd1", "sd1", "sd1.safetensors"};
  const models::ModelConfig model = adapted.model();
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_image_prompts({}, model); }),
              HasSubstr("--ip-image"));
  const models::ModelConfig none = read_recipe(kData / "sd1", {}).model;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_image_prompts({"a.png"}, none); }),
              HasSubstr("--ip-adapter"));
  fs::copy(kAdapters / "sd1.safetensors", folder() / "alone.safetensors");
  EXPECT_THAT(
      error_of(ErrorKind::kIo,
               [&] { return pipelines::find_image_encoder(folder() / "alone.safetensors"); }),
      AllOf(HasSubstr("alone.safetensors"), HasSubstr("--ip-encoder")));
  const auto check = [&] { pipelines::check_image_encoder(folder(), model); };
  EXPECT_THAT(error_of(ErrorKind::kIo, check), HasSubstr("has no config.json"));
  std::ifstream in(kEncoder / "config.json");
  json config = json::parse(in);
  config["projection_dim"] = 20;
  std::ofstream(folder() / "config.json") << config;
  EXPECT_THAT(error_of(ErrorKind::kConfig, check),
              AllOf(HasSubstr("projection_dim must be 12"), HasSubstr("got 20")));
  config["hidden_size"] = 24;
  std::ofstream(folder() / "config.json") << config;
  const models::ModelConfig plus = Adapted{"plus", "sd1", "plus.safetensors"}.model();
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         pipelines::check_image_encoder(folder(), plus);
                         return 0;
                       }),
              AllOf(HasSubstr("hidden_size must be 16"), HasSubstr("got 24")));
}

}  // namespace ip_adapter_test
}  // namespace kinora::inference
