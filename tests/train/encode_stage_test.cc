#include "kinora/train/encode_stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
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
RunConfig cached_config(const pipelines::LatentEncoder& encoder, const fs::path& cache,
                        RunConfig config = pixel_config()) {
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
  const EncodeStage encoding_{5, at::kCPU, {.encoder = &encoder_}};
  const EncodeStage drawing_{5, at::kCPU};
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

// What the model is shown beside x_t: of a cache without the autoencoder, but for kEdit, which
// takes its scale off.
TEST_F(EncodeStageTest, PicturesBesideAreShownFromTheirCacheAsOnLine) {
  RunConfig pixels = pixel_config();
  pixels.data.source = data::SourceKind::kCaptions;
  pixels.data.path = {(folder_.path() / "set").string()};
  pixels.data.before = true;
  pixels.data.mask = data::MaskKind::kFile;
  pixels.data.references = 2;
  for (int i = 0; i < 20; ++i) {
    const std::string name = "set/" + std::to_string(i);
    for (const char* const end : {"", ".before", ".mask", ".reference", ".reference2"}) {
      if (i % 2 == 0 || std::string_view(end) != ".reference2") {
        folder_.write(
            name + end + ".png",
            data::grey_png(static_cast<uint8_t>(10 * i + name.size() + std::strlen(end)), 20, 16));
      }
    }
  }
  const RunConfig cached = cached_config(encoder_, folder_.path() / "cache", pixels);
  using models::ShownInput;
  for (const ShownInput input : {ShownInput::kReference, ShownInput::kSubjects, ShownInput::kFill,
                                 ShownInput::kInpaint, ShownInput::kEdit}) {
    SCOPED_TRACE(to_string(input));
    const EncodeStage online(5, at::kCPU, {.encoder = &encoder_, .input = input});
    const EncodeStage drawing(
        5, at::kCPU, {.encoder = input == ShownInput::kEdit ? &encoder_ : nullptr, .input = input});
    const std::vector<StepSamples> wanted = steps_of(pixels, online, 0, 4);
    const std::vector<StepSamples> got = steps_of(cached, drawing, 0, 4);
    expect_same(wanted, got);
    for (size_t step = 0; step < wanted.size(); ++step) {
      const data::Batch& batch = got[step].batches.front();
      EXPECT_TRUE(at::equal(batch.beside, wanted[step].batches.front().beside)) << step;
      EXPECT_FALSE(batch.before.defined() || batch.references.defined() || batch.masked.defined());
      EXPECT_EQ(batch.mask.defined(), !models::fills_in(input));
    }
    const std::vector<int64_t> indices = {4, 1, 2};
    const auto means_of = [&](const RunConfig& config, const EncodeStage& stage) {
      return stage
          .means(data::load_samples(*data::open_source(config.data), indices,
                                    data::sample_size(pixels.data)))
          .beside;
    };
    EXPECT_TRUE(at::equal(means_of(cached, drawing), means_of(pixels, online)));
  }
}

/// A causal autoencoder of clips in two lines: 1 + 4 k frames become 1 + k latent ones, means of
/// patches of 4 x 4; each also holds the mean of the whole clip, as norms do.
class ClipAutoencoder : public models::Autoencoder {
 public:
  ClipAutoencoder()
      : Autoencoder(
            {.channels = 3, .compression = 4, .frame_compression = 4, .first_frame_alone = true}) {}

  models::LatentMoments encode(const at::Tensor& pixels) override {
    const at::Tensor small = at::avg_pool3d(pixels, {1, 4, 4});
    at::Tensor latents = small.narrow(2, 0, 1);
    if (small.size(2) > 1) {
      latents =
          at::cat({latents, at::avg_pool3d(small.narrow(2, 1, small.size(2) - 1), {4, 1, 1})}, 2);
    }
    return {.mean = latents + small.mean(2, /*keepdim=*/true), .std = {}};
  }
  at::Tensor decode(const at::Tensor& /*latents*/) override {
    KINORA_UNREACHABLE("[clip] nothing decodes");
  }
};

// Open-Sora 2, prepare_visual_condition_causal(): what is given was encoded without the rest.
TEST(EncodeGivenTest, GivenFramesAreEncodedByThemselves) {
  RunConfig config;
  config.data.source = data::SourceKind::kMovingShapes;
  config.data.count = 40;
  config.data.frames = 41;
  config.data.height = 16;
  config.data.width = 16;
  config.data.threads = 1;
  config.train.seed = 5;
  config.train.global_batch = 20;
  config.train.micro_batch = 20;
  diffusion::FrameMaskRatios given;
  given.weights = {.t2v = 1, .i2v_head = 1, .i2v_loop = 1, .v2v_head = 1, .v2v_tail = 1};
  ClipAutoencoder autoencoder;
  const pipelines::LatentEncoder encoder(autoencoder, at::kCPU, 3);
  const EncodeStage plain(5, at::kCPU);
  const EncodeStage encoding(5, at::kCPU, {.encoder = &encoder, .given = given, .compression = 4});
  const at::Tensor pixels = steps_of(config, plain, 1, 2).at(0).batches.at(0).images;
  const std::vector<StepSamples> steps = steps_of(config, encoding, 1, 2);
  EXPECT_EQ(steps.at(0).step, 1);
  const data::Batch& batch = steps.at(0).batches.at(0);
  ASSERT_EQ(batch.images.sizes(), (at::IntArrayRef{20, 3, 11, 4, 4}));
  const at::Tensor masks = diffusion::draw_frame_masks(
      given, 11, {.seed = 5, .step = 1, .sample_index = batch.sample_index}, 4);
  int64_t loops = 0;
  int64_t tails = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const auto encoded = [&](int64_t first, int64_t count) {
      return encoder.encode(pixels.narrow(0, i, 1).narrow(2, first, count).contiguous()).mean[0];
    };
    const at::Tensor got = batch.given[i];
    const bool has_head = !masks[i][0].item<bool>();
    const bool has_tail = !masks[i][10].item<bool>();
    const int64_t count = 11 - masks[i].sum().item<int64_t>();
    if (has_head && has_tail) {
      ++loops;
      EXPECT_TRUE(got.narrow(1, 10, 1).equal(encoded(40, 1)));
      EXPECT_TRUE(got.narrow(1, 0, 1).equal(encoded(0, 1)));
      EXPECT_FALSE(got.narrow(1, 0, 1).equal(batch.images[i].narrow(1, 0, 1)));
    } else if (has_tail) {
      ++tails;
      EXPECT_EQ(count, 9);
      EXPECT_TRUE(got.narrow(1, 2, 9).equal(encoded(8, 33)));
    } else if (has_head) {
      EXPECT_TRUE(got.narrow(1, 0, count).equal(encoded(0, 4 * count - 3)));
    }
    EXPECT_TRUE(at::where(masks[i].view({11, 1, 1}), got, 0.0).eq(0.0).all().item<bool>());
  }
  EXPECT_GT(loops, 0);
  EXPECT_GT(tails, 0);
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
