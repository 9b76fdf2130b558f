#include "kinora/train/encode_stage.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <vector>

#include "kinora/data/run_data.h"
#include "kinora/pipelines/encode.h"
#include "kinora/train/setup.h"
#include "kinora/train/training_step.h"
#include "tests/data/files.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::train {
namespace encode_stage_test {

namespace fs = std::filesystem;

/// A run on 40 generated pictures, mirrored at random: two steps and a bit an epoch.
RunConfig pixel_config() {
  RunConfig config;
  config.data.count = 40;
  config.data.height = 16;
  config.data.width = 16;
  config.data.threads = 2;
  config.data.flip = true;
  config.train.seed = 5;
  config.train.global_batch = 16;
  config.train.micro_batch = 8;
  return config;
}

/// The same on a cache of their latents.
RunConfig cached_config(const pipelines::LatentEncoder& encoder, const fs::path& cache) {
  RunConfig config = pixel_config();
  (void)pipelines::encode(*data::open_source(config.data), encoder,
                          {.out = cache,
                           .data = config.data,
                           .autoencoder = "patches",
                           .dtype = DType::kF32,
                           .mirrored = true,
                           .progress = {}},
                          {});
  config.data.source = data::SourceKind::kLatents;
  config.data.path = {cache.string()};
  return config;
}

/// The steps from `first` to `last` of a run.
std::vector<StepSamples> steps_of(const RunConfig& config, const EncodeStage& stage, int64_t first,
                                  int64_t last) {
  const data::RunData data = open_data(config.data);
  const int64_t position = first * config.train.global_batch;
  StepLoader loader(config, {.data = data.train.get()}, {},
                    {.step = first, .data = position, .image_data = 0}, /*pinned=*/false);
  std::vector<StepSamples> steps;
  for (int64_t step = first; step < last; ++step) {
    steps.push_back(loader.next());
    stage.begin(steps.back());
    stage.wait(steps.back());
  }
  return steps;
}

void expect_same(const std::vector<StepSamples>& left, const std::vector<StepSamples>& right) {
  ASSERT_EQ(left.size(), right.size());
  for (size_t step = 0; step < left.size(); ++step) {
    ASSERT_EQ(left[step].batches.size(), right[step].batches.size());
    for (size_t i = 0; i < left[step].batches.size(); ++i) {
      const data::Batch& a = left[step].batches[i];
      const data::Batch& b = right[step].batches[i];
      EXPECT_TRUE(at::equal(a.images, b.images)) << step;
      EXPECT_TRUE(at::equal(a.labels, b.labels)) << step;
      EXPECT_TRUE(at::equal(a.sample_index, b.sample_index)) << step;
      EXPECT_FALSE(a.latent_std.defined());
    }
  }
}

class EncodeStageTest : public testing::Test {
 protected:
  PatchAutoencoder autoencoder_;
  const pipelines::LatentEncoder encoder_{autoencoder_, at::kCPU, 3};
  const EncodeStage encoding_{&encoder_, nullptr, 5, at::kCPU};
  const EncodeStage drawing_{nullptr, nullptr, 5, at::kCPU};
  const data::TemporaryFolder folder_;
};

TEST_F(EncodeStageTest, PixelsGiveTheLatentsOfTheirCache) {
  const RunConfig cached = cached_config(encoder_, folder_.path());
  expect_same(steps_of(pixel_config(), encoding_, 0, 7), steps_of(cached, drawing_, 0, 7));
}

TEST_F(EncodeStageTest, AResumedRunDrawsTheSame) {
  const RunConfig cached = cached_config(encoder_, folder_.path());
  std::vector<StepSamples> all = steps_of(cached, drawing_, 0, 6);
  all.erase(all.begin(), all.begin() + 4);
  expect_same(all, steps_of(cached, drawing_, 4, 6));
}

// The 8 samples are two pictures, four times.
TEST_F(EncodeStageTest, EveryEpochDrawsAnew) {
  RunConfig config = pixel_config();
  config.data.count = 2;
  config.data.flip = false;
  const std::vector<StepSamples> steps = steps_of(config, encoding_, 0, 1);
  const at::Tensor& images = steps.front().batches.front().images;
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      EXPECT_FALSE(at::equal(images[i], images[j]));
    }
  }
}

TEST_F(EncodeStageTest, WhatIsNotDrawnPassesAsItIs) {
  const std::vector<StepSamples> steps = steps_of(pixel_config(), drawing_, 0, 1);
  EXPECT_EQ(steps.front().batches.front().images.scalar_type(), at::kByte);
}

TEST_F(EncodeStageTest, MeansAreNotDrawn) {
  const RunConfig cached = cached_config(encoder_, folder_.path());
  const std::vector<int64_t> indices = {3, 1};
  const RunConfig pixels = pixel_config();
  const data::SampleSize size = data::sample_size(pixels.data);
  const auto means_of = [&](const RunConfig& config, const EncodeStage& stage) {
    return stage.means(data::load_samples(*data::open_source(config.data), indices, size)).images;
  };
  const at::Tensor means = means_of(pixels, encoding_);
  EXPECT_EQ(means.sizes(), (at::IntArrayRef{2, 3, 4, 4}));
  EXPECT_TRUE(at::equal(means, means_of(cached, drawing_)));
  EXPECT_TRUE(at::equal(means, means_of(pixels, encoding_)));
}

TEST_F(EncodeStageTest, TheModelTakesTheSizeOfTheLatents) {
  RunConfig config = pixel_config();
  config.model.name = "DiT-S/2";
  const auto source = data::open_source(config.data);
  const auto latents = latent_size(config.data, *source, &encoder_);
  ASSERT_TRUE(latents);
  EXPECT_EQ(latents->shape, (data::SampleShape{3, 4, 4, 16, 16}));
  EXPECT_EQ(latents->frames, 1);
  const models::ModelConfig model = inference::resolved_model(config, 16, latents);
  EXPECT_EQ(model.height, 4);
  EXPECT_EQ(model.compression, 4);
  EXPECT_FALSE(latent_size(config.data, *source, nullptr));
}

}  // namespace encode_stage_test
}  // namespace kinora::train
