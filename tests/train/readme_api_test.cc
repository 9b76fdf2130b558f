// The example of README.md, "The C++ API in ten lines", with a run of one step.

#include <gtest/gtest.h>

#include <filesystem>

#include "kinora/core/config.h"
#include "kinora/io/image_grid.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/train/trained_model.h"
#include "kinora/train/trainer.h"

namespace {

TEST(ReadmeTest, ApiExampleWorks) {
  const std::string folder = testing::TempDir() + "kinora-readme-api";
  std::filesystem::remove_all(folder);
  auto config = kinora::load_config<kinora::train::RunConfig>(
      KINORA_SOURCE_DIR "/configs/demo.yaml",
      {"run.dir=" + folder, "train.steps=1", "train.device=cpu", "sample.steps=2"});
  kinora::train::Trainer(config, {}).run();
  auto trained = kinora::train::load_trained(folder, {.device = kinora::train::DeviceChoice::kCpu});
  const auto& sampling = trained.config.sample.sampling;
  auto pixels = kinora::pipelines::sample_classes(
      *trained.model, kinora::pipelines::make_sampler(sampling, trained.objective), sampling,
      {.classes = {0, 1}, .count = 8}, {3, 32, 32}, 16, trained.device);
  const auto grid = kinora::io::make_grid(kinora::pipelines::to_images(pixels));
  kinora::io::write_png(folder + "/grid.png", grid);
  EXPECT_EQ(pixels.size(0), 8);
  EXPECT_TRUE(std::filesystem::exists(folder + "/grid.png"));
  std::filesystem::remove_all(folder);
}

}  // namespace
