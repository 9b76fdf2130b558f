// U-Nets that are told nothing, of latent diffusion and of DDPM, compared with CompVis' code and
// with diffusers' pipelines: tools/reference/make_unconditional_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "kinora/models/model.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/first_stage.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::inference {
namespace unconditional_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::HasSubstr;

const char* const kWeights = "diffusion_pytorch_model.safetensors";
const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};

double relative(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

class UnconditionalTest : public testing::Test {
 protected:
  UnconditionalTest() { fs::create_directories(folder_); }
  ~UnconditionalTest() override { fs::remove_all(folder_); }

  [[nodiscard]] const fs::path& folder() const { return folder_; }
  static WeightsFile fixture(const std::string& name) {
    return WeightsFile::open(
        source_path("tests/inference/data/unconditional/" + name + ".safetensors"));
  }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// Tensors of such names and shapes, with the formula's values.
  static models::NamedTensors tensors_of(const json& shapes) {
    models::NamedTensors tensors;
    for (const auto& [key, shape] : shapes.items()) {
      tensors[key] = models::formula_weight(key, shape.get<std::vector<int64_t>>());
    }
    return tensors;
  }
  static void write_vqvae(const fs::path& path, const std::string& config) {
    models::AutoencoderVq vqvae({.halves = {.block_out_channels = {32, 32, 64},
                                            .layers_per_block = 1,
                                            .latent_channels = 3},
                                 .num_vq_embeddings = 64,
                                 .vq_embed_dim = 3});
    write(path / "config.json", config);
    models::write_tensors(path / kWeights, models::formula_weights(vqvae));
  }
  /// A folder of LDMPipeline.
  void write_latent_pipeline() const {
    const WeightsFile its = fixture("latents");
    write(folder_ / "model_index.json", R"({"_class_name": "LDMPipeline"})");
    write(folder_ / "unet/config.json", its.metadata("unet"));
    models::write_tensors(folder_ / "unet" / kWeights,
                          tensors_of(json::parse(its.metadata("shapes"))));
    write(folder_ / "scheduler/scheduler_config.json", its.metadata("scheduler"));
    write_vqvae(folder_ / "vqvae", its.metadata("vqvae"));
  }
  /// A folder whose parts lie all in it, as google/ddpm-cifar10-32.
  void write_pixel_pipeline(const std::string& name, const std::string& scheduler) const {
    const WeightsFile its = fixture("pixels");
    write(folder_ / "model_index.json", json({{"_class_name", name}}).dump());
    write(folder_ / "config.json", its.metadata("unet"));
    models::write_tensors(folder_ / kWeights, tensors_of(json::parse(its.metadata("shapes"))));
    write(folder_ / "scheduler_config.json", its.metadata(scheduler));
  }
  [[nodiscard]] at::Tensor drawn(const fs::path& path, const LoadOptions& options = kOnCpu) const {
    TrainedModel trained = load_trained(path, options);
    const Request request{.count = 2, .seed = 5};
    return Drawing(trained, {request}, {.steps = 4}).draw();
  }
  static double difference(const at::Tensor& ours, const at::Tensor& theirs) {
    const double difference = (ours - theirs.to(at::kFloat)).abs().max().item<double>();
    RecordProperty("largest_difference", std::to_string(difference));
    return difference;
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("unconditional-" + std::to_string(::getpid()));
};

TEST_F(UnconditionalTest, LatentPipelinesDrawThePicturesOfDiffusers) {
  write_latent_pipeline();
  const WeightsFile expected = fixture("latents");
  const ModelRecipe recipe = read_recipe(folder(), kOnCpu);
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 1.0);
  EXPECT_EQ(recipe.model.num_classes, 1);
  EXPECT_EQ(recipe.model.compression, 4);
  const at::Tensor latents = drawn(folder());
  EXPECT_LT(relative(latents, expected.read("latents")), 1e-4);
  const auto decoder = open_decoder(recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents, expected.read("pictures"));
}

TEST_F(UnconditionalTest, PixelPipelinesDrawThePicturesOfDiffusers) {
  const WeightsFile expected = fixture("pixels");
  for (const auto& [name, scheduler, pictures, steps] :
       {std::tuple{"DDPMPipeline", "scheduler", "pictures", 1000},
        std::tuple{"DDIMPipeline", "ddim", "ddim", 50}}) {
    SCOPED_TRACE(name);
    write_pixel_pipeline(name, scheduler);
    const ModelRecipe recipe = read_recipe(folder(), kOnCpu);
    EXPECT_EQ(recipe.sample.sampling.steps, steps);
    EXPECT_EQ(recipe.autoencoder.path, "");
    EXPECT_TRUE(recipe.model.unet.sines_first);
    EXPECT_TRUE(recipe.model.unet.pads_behind);
    EXPECT_LT(difference((drawn(folder()) / 2 + 0.5).clamp(0.0, 1.0), expected.read(pictures)),
              1.0 / 255.0);
  }
}

// As diffusers' AttentionBlock called them, whose files the hub has.
TEST_F(UnconditionalTest, OldNamesOfDiffusersAreRead) {
  write_latent_pipeline();
  const at::Tensor want = drawn(folder());
  models::NamedTensors old;
  for (auto& [key, value] : tensors_of(json::parse(fixture("latents").metadata("shapes")))) {
    std::string name = key;
    for (const auto& [now, before] : {std::pair{".to_q.", ".query."},
                                      {".to_k.", ".key."},
                                      {".to_v.", ".value."},
                                      {".to_out.0.", ".proj_attn."}}) {
      if (const size_t at = name.find(now); at != std::string::npos) {
        name.replace(at, std::string(now).size(), before);
      }
    }
    old[name] = value;
  }
  EXPECT_TRUE(old.contains("mid_block.attentions.0.proj_attn.bias"));
  models::write_tensors(folder() / "unet" / kWeights, old);
  EXPECT_TRUE(at::equal(drawn(folder()), want));
}

/// A file as CompVis publishes them: the fixture's U-Net and an autoencoder.
fs::path write_compvis(const fs::path& folder, const WeightsFile& its) {
  models::NamedTensors tensors;
  const json shapes = json::parse(its.metadata("shapes"));
  for (const auto& [key, shape] : shapes.items()) {
    tensors[key] = models::formula_weight(key, shape.get<std::vector<int64_t>>());
  }
  const models::AutoencoderVqConfig config = {
      .halves = {.block_out_channels = {32, 32, 64}, .layers_per_block = 1, .latent_channels = 3},
      .num_vq_embeddings = 64,
      .vq_embed_dim = 3};
  add_first_stage(config, tensors);
  models::write_tensors(folder / "celeba256.safetensors", tensors);
  return folder / "celeba256.safetensors";
}

TEST_F(UnconditionalTest, AFileOfCompvisComputesAsItsAuthorsCode) {
  const WeightsFile expected = fixture("compvis");
  const fs::path file = write_compvis(folder(), expected);
  TrainedModel trained = load_trained(file, kOnCpu);
  EXPECT_EQ(trained.recipe.model.unet.heads, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(trained.recipe.model.height, 64);
  EXPECT_EQ(trained.recipe.model.compression, 4);
  EXPECT_EQ(trained.recipe.autoencoder.path, file.string());
  EXPECT_EQ(trained.recipe.objective.beta_end, 0.0195);
  EXPECT_EQ(trained.recipe.sample.sampling.steps, 50);
  EXPECT_EQ(trained.recipe.sample.sampling.guidance, 1.0);
  const at::NoGradGuard no_grad;
  const at::Tensor output =
      trained.model->forward(expected.read("x_t"), expected.read("t"), diffusion::Conditions());
  EXPECT_LT(relative(output, expected.read("output")), 1e-5);
}

// Of lsun_churches256, whose residual blocks change sizes and are scaled by the time.
TEST_F(UnconditionalTest, AFileOfChurchesComputesAsItsAuthorsCode) {
  const WeightsFile expected = fixture("churches");
  models::NamedTensors tensors = tensors_of(json::parse(expected.metadata("shapes")));
  const size_t of_unet = tensors.size();
  const WeightsFile words =
      WeightsFile::open(source_path("tests/inference/data/latent_diffusion/words.safetensors"));
  for (const auto& [key, value] : tensors_of(json::parse(words.metadata("vqvae.shapes")))) {
    tensors["first_stage_model." + models::compvis_kl_key(key, 4)] =
        models::is_kl_attention_weight(key) ? value.unsqueeze(-1).unsqueeze(-1) : value;
  }
  tensors["scale_factor"] = at::scalar_tensor(0.25);
  const fs::path file = folder() / "churches.safetensors";
  models::write_tensors(file, tensors);
  TrainedModel trained = load_trained(file, kOnCpu);
  EXPECT_EQ(trained.recipe.model.unet.heads, (std::vector<int64_t>{8, 8, 8}));
  EXPECT_EQ(trained.recipe.model.height, 32);
  EXPECT_EQ(trained.recipe.objective.beta_end, 0.0155);
  EXPECT_EQ(pipelines::latent_space(file).scale, std::vector<double>{0.25});
  const at::NoGradGuard no_grad;
  const at::Tensor output =
      trained.model->forward(expected.read("x_t"), expected.read("t"), diffusion::Conditions());
  EXPECT_LT(relative(output, expected.read("output")), 1e-5);

  (void)convert_weights({.from = file, .to = folder() / "ours.safetensors"});
  (void)convert_weights({.from = folder() / "ours.safetensors",
                         .to = folder() / "again.safetensors",
                         .layout = ConvertOptions::Layout::kCompvis});
  const WeightsFile again = WeightsFile::open(folder() / "again.safetensors");
  EXPECT_EQ(again.names().size(), of_unet);
  for (const std::string& name : again.names()) {
    EXPECT_TRUE(at::equal(again.read(name), tensors.at(name))) << name;
  }
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         (void)convert_weights({.from = file, .to = folder() / "parts"});
                         return 0;
                       }),
              HasSubstr("heads of all levels (model.unet.heads) must have as many channels"));
}

// A folder that diffusers opens, and a file again, bit for bit.
TEST_F(UnconditionalTest, FilesBecomeFoldersAndFilesAgain) {
  const fs::path file = write_compvis(folder(), fixture("compvis"));
  const fs::path parts = folder() / "parts";
  (void)convert_weights({.from = file, .to = parts, .autoencoder = file});
  std::ifstream index(parts / "model_index.json");
  EXPECT_EQ(json::parse(index)["_class_name"], "LDMPipeline");
  EXPECT_TRUE(fs::exists(parts / "vqvae/config.json"));
  const WeightsFile theirs = WeightsFile::open(parts / "unet" / kWeights);
  EXPECT_EQ(theirs.shape("mid_block.attentions.0.to_k.weight"), (std::vector<int64_t>{96, 96}));
  (void)convert_weights({.from = parts,
                         .to = folder() / "again.safetensors",
                         .layout = ConvertOptions::Layout::kCompvis});
  const WeightsFile first = WeightsFile::open(file);
  const WeightsFile again = WeightsFile::open(folder() / "again.safetensors");
  for (const std::string& name : again.names()) {
    EXPECT_TRUE(at::equal(again.read(name), first.read(name))) << name;
  }
  EXPECT_EQ(again.names().size(), json::parse(fixture("compvis").metadata("shapes")).size());
  const LoadOptions small = {.device = DeviceChoice::kCpu,
                             .overrides = {"model.height=8", "model.width=8"},
                             .says = false};
  EXPECT_EQ(read_recipe(parts, kOnCpu).objective.beta_end, 0.0195);
  // How the file is drawn stands in no file of diffusers' but the scheduler's.
  LoadOptions as_folder = small;
  as_folder.overrides.insert(as_folder.overrides.end(),
                             {"sample.steps_offset=0", "sample.end_clean=true"});
  EXPECT_TRUE(at::equal(drawn(parts, small), drawn(file, as_folder)));
}

TEST_F(UnconditionalTest, WhatDoesNotFitIsNamed) {
  write_latent_pipeline();
  TrainedModel trained = load_trained(folder(), kOnCpu);
  const auto refusal = [&](const Request& request) {
    return error_of(ErrorKind::kConfig, [&] { return Drawing(trained, {request}, {}).draw(); });
  };
  EXPECT_THAT(refusal({.classes = {3}}), HasSubstr("classes must lie in 0 to 0, got 3"));
  EXPECT_THAT(refusal({.guidance = 2.0}), HasSubstr("told nothing that guidance could be by"));
  json config = json::parse(fixture("latents").metadata("unet"));
  config["num_class_embeds"] = 6;
  write(folder() / "unet/config.json", config.dump());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(folder(), kOnCpu); }),
              HasSubstr("is a U-Net that is told classes, but a LDMPipeline tells it none"));
  fs::remove_all(folder() / "vqvae");
  write(folder() / "unet/config.json", fixture("latents").metadata("unet"));
  const ModelRecipe recipe = read_recipe(folder(), kOnCpu);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { check_decoder(recipe, {}); }), HasSubstr("vqvae"));
}

}  // namespace unconditional_test
}  // namespace kinora::inference
