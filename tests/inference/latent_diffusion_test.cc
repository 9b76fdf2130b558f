// Latent diffusion of classes in one file, as CompVis publishes cin256-v2, compared with diffusers'
// U-Net, autoencoder and scheduler: tools/reference/make_latent_diffusion_fixtures.py.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "kinora/models/model.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/first_stage.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

namespace kinora::inference {
namespace latent_diffusion_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

models::ModelConfig unet() {
  models::ModelConfig config;
  config.architecture = "class_unet";
  config.in_channels = 3;
  config.learn_sigma = false;
  config.height = config.width = 8;
  config.num_classes = 10;
  config.text_channels = 8;
  config.unet.channels = {32, 64};
  config.unet.resnets = 1;
  config.unet.depths = {0, 1};
  config.unet.middle_depth = 1;
  config.unet.heads = {1, 1};
  config.unet.classes = models::UnetClasses::kToken;
  return config;
}

models::AutoencoderVqConfig autoencoder(std::vector<int64_t> channels, int64_t latent_channels) {
  return {.halves = {.block_out_channels = std::move(channels),
                     .layers_per_block = 1,
                     .latent_channels = latent_channels},
          .num_vq_embeddings = 64,
          .vq_embed_dim = latent_channels};
}

class LatentDiffusionTest : public testing::Test {
 protected:
  LatentDiffusionTest() {
    fs::create_directories(folder_);
    write(autoencoder({32, 32, 64}, 3));
  }
  ~LatentDiffusionTest() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path file() const { return folder_ / "cin256.safetensors"; }
  /// A file of the U-Net, its classes and this autoencoder.
  void write(const models::AutoencoderVqConfig& config) const {
    models::NamedTensors tensors;
    add_first_stage(config, tensors);
    for (const nn::OtherName& name : models::compvis_unet_naming(unet())) {
      tensors[name.keys.front()] = models::formula_weight(name.path, shape_of(name));
    }
    models::write_tensors(file(), tensors);
  }
  static std::vector<int64_t> shape_of(const nn::OtherName& name) {
    if (!name.shape.empty()) {
      return name.shape;
    }
    static const auto model = models::make_model(unet());
    for (const auto& [path, parameter] : model->named_parameters()) {
      if (path == name.path) {
        return parameter->shape;
      }
    }
    return {};
  }
  static LoadOptions options() {
    return {.device = DeviceChoice::kCpu,
            .overrides = {"model.height=8", "model.width=8"},
            .says = false};
  }
  [[nodiscard]] const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_ =
      fs::path(testing::TempDir()) / ("latent-diffusion-" + std::to_string(::getpid()));
};

TEST_F(LatentDiffusionTest, PicturesAreThoseOfDiffusersParts) {
  const WeightsFile expected =
      WeightsFile::open(source_path("tests/inference/data/latent_diffusion/drawn.safetensors"));
  TrainedModel trained = load_trained(file(), options());
  const Request request{.classes = json::parse(expected.metadata("labels")),
                        .seed = std::stoull(expected.metadata("seed"))};
  const at::Tensor latents = Drawing(trained, {request}, {.steps = 4}).draw();
  const at::Tensor wanted = expected.read("latents");
  EXPECT_LT(((latents - wanted).norm() / wanted.norm()).item<double>(), 1e-4);
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents, expected.read("pictures"));
}

TEST_F(LatentDiffusionTest, ARecipeIsThatOfTheNotebookAndOfItsAutoencoder) {
  const ModelRecipe recipe = read_recipe(file(), {.device = DeviceChoice::kCpu, .says = false});
  EXPECT_EQ(recipe.sample.sampling.steps, 20);
  EXPECT_EQ(recipe.sample.sampling.guidance, 3.0);
  EXPECT_EQ(recipe.model.num_classes, 10);
  EXPECT_EQ(recipe.model.compression, 4);
  EXPECT_EQ(recipe.model.height, 64);
  EXPECT_EQ(recipe.autoencoder.path, file().string());
  EXPECT_EQ(pipelines::find_pipeline(file())->note, "");
  write(autoencoder({32, 32, 32, 64}, 3));
  const ModelRecipe other = read_recipe(file(), {.device = DeviceChoice::kCpu, .says = false});
  EXPECT_EQ(other.model.compression, 8);
  EXPECT_EQ(other.model.height, 32);
}

// Its first form has heads of 32 channels and 1,000 vectors, none of them of the null class.
TEST_F(LatentDiffusionTest, WithoutANullClassTheLastOneStandsForIt) {
  models::NamedTensors tensors;
  const WeightsFile before = WeightsFile::open(file());
  for (const std::string& name : before.names()) {
    tensors[name] = before.read(name);
  }
  at::Tensor& classes = tensors.at("cond_stage_model.embedding.weight");
  classes = models::formula_weight("classes", {1000, classes.size(1)});
  models::write_tensors(folder() / "first.safetensors", tensors);
  const ModelRecipe recipe =
      read_recipe(folder() / "first.safetensors", {.device = DeviceChoice::kCpu, .says = false});
  EXPECT_EQ(recipe.model.num_classes, 999);
  EXPECT_EQ(recipe.model.unet.heads, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(recipe.sample.sampling.guidance, 1.0);
  EXPECT_THAT(pipelines::find_pipeline(folder() / "first.safetensors")->note,
              HasSubstr("class 999 stands for it"));
}

TEST_F(LatentDiffusionTest, TheAutoencoderOfOtherLatentsIsNamedWithBothNumbers) {
  write(autoencoder({32, 32, 64}, 4));
  const ModelRecipe recipe = read_recipe(file(), options());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { check_decoder(recipe, {}); }),
              AllOf(HasSubstr(file().string()), HasSubstr("4 channels, but the model draws 3")));
}

TEST_F(LatentDiffusionTest, ItsPartsBecomeAFolderOfDiffusersAndAFileAgain) {
  const auto convert = [](const ConvertOptions& options) { return convert_weights(options); };
  (void)convert({.from = file(), .to = folder() / "parts", .autoencoder = file()});
  EXPECT_TRUE(fs::exists(folder() / "parts/unet/config.json"));
  const at::NoGradGuard no_grad;
  const at::Tensor z = models::formula_values("z", {1, 3, 4, 4});
  const auto decoded = [&z](const fs::path& path) {
    return pipelines::open_autoencoder(path, at::kCPU, at::kFloat)->decode(z);
  };
  EXPECT_TRUE(at::equal(decoded(folder() / "parts"), decoded(file())));
  const Converted converted = convert({.from = folder() / "parts/vae",
                                       .to = folder() / "first.safetensors",
                                       .layout = ConvertOptions::Layout::kCompvis});
  EXPECT_THAT(converted.notes.front(), HasSubstr("does not say how latents are scaled"));
  EXPECT_EQ(pipelines::fingerprint(folder() / "first.safetensors"), pipelines::fingerprint(file()));
}

}  // namespace latent_diffusion_test
}  // namespace kinora::inference
