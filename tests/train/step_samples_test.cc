#include "kinora/train/step_samples.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kinora/data/run_data.h"
#include "tests/comm/ranks.h"

namespace kinora::train {
namespace step_samples_test {

constexpr int64_t kSteps = 60;

TEST(StepSamplesTest, AShareOfTheStepsIsDrawn) {
  constexpr int64_t kDraws = 20000;
  const auto count = [](double share, uint64_t seed) {
    int64_t images = 0;
    for (int64_t step = 0; step < kDraws; ++step) {
      images += kind_of_step(share, seed, step) == StepKind::kImageData ? 1 : 0;
    }
    return static_cast<double>(images);
  };
  EXPECT_EQ(count(0.0, 1), 0.0);
  // By another implementation of Philox, in Python: runs resumed by later versions must agree.
  std::string first;
  for (int64_t step = 0; step < 20; ++step) {
    first += kind_of_step(0.4, 0, step) == StepKind::kImageData ? 'i' : '.';
  }
  EXPECT_EQ(first, "....i.iii.i...i.....");
  for (const double share : {0.05, 0.3, 0.9}) {
    const double deviation = std::sqrt(kDraws * share * (1.0 - share));
    EXPECT_NEAR(count(share, 1), kDraws * share, 4.0 * deviation);
    EXPECT_NEAR(count(share, 2), kDraws * share, 4.0 * deviation);
  }
  // Independent from step to step and from seed to seed.
  int64_t follow = 0;
  int64_t agree = 0;
  for (int64_t step = 0; step < kDraws; ++step) {
    const StepKind kind = kind_of_step(0.5, 1, step);
    follow += kind == kind_of_step(0.5, 1, step + 1) ? 1 : 0;
    agree += kind == kind_of_step(0.5, 2, step) ? 1 : 0;
  }
  const double deviation = std::sqrt(kDraws * 0.25);
  EXPECT_NEAR(static_cast<double>(follow), kDraws * 0.5, 4.0 * deviation);
  EXPECT_NEAR(static_cast<double>(agree), kDraws * 0.5, 4.0 * deviation);
}

/// Clips in steps of 4 and images in steps of 12, of 7 and 10 samples: epochs end within steps.
RunConfig config_of(int64_t micro_batch, int64_t image_micro_batch) {
  RunConfig config;
  config.data.source = data::SourceKind::kMovingShapes;
  config.data.frames = 3;
  config.data.count = 7;
  config.image_data.count = 10;
  for (data::DataConfig* part : {&config.data, &config.image_data}) {
    part->height = 16;
    part->width = 16;
    part->threads = 1;
  }
  config.train.seed = 3;
  config.train.global_batch = 4;
  config.train.micro_batch = micro_batch;
  config.image_steps = {.share = 0.4, .global_batch = 12, .micro_batch = image_micro_batch};
  return config;
}

class Sets {
 public:
  explicit Sets(const RunConfig& config)
      : config_(config), data_(open_data(config.data)), images_(open_data(config.image_data)) {}

  [[nodiscard]] StepLoader loader(const StepPosition& position = {},
                                  const parallel::Mesh& mesh = {}) const {
    return {config_, {data_.train.get(), images_.train.get()}, mesh, position, /*pinned=*/false};
  }

 private:
  RunConfig config_;
  data::RunData data_;
  data::RunData images_;
};

/// Of all micro-batches.
data::Batch whole(const StepSamples& samples) {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> indices;
  for (const data::Batch& batch : samples.batches) {
    images.push_back(batch.images);
    indices.push_back(batch.sample_index);
  }
  return {.images = at::cat(images), .sample_index = at::cat(indices)};
}

TEST(StepSamplesTest, EachSetGoesOnWhereItsLastStepEnded) {
  const Sets sets(config_of(2, 4));
  StepLoader loader = sets.loader();
  StepPosition position;
  for (; position.step < kSteps; ++position.step) {
    const StepSamples samples = loader.next();
    EXPECT_EQ(samples.kind, kind_of_step(0.4, 3, position.step));
    const bool is_data = samples.kind == StepKind::kData;
    EXPECT_EQ(samples.global_batch, is_data ? 4 : 12);
    EXPECT_EQ(samples.batches.size(), is_data ? 2U : 3U);
    EXPECT_EQ(samples.batches.front().images.dim(), is_data ? 5 : 4);
    int64_t& next = is_data ? position.data : position.image_data;
    const data::Batch batch = whole(samples);
    ASSERT_EQ(batch.sample_index.size(0), samples.global_batch);
    for (int64_t i = 0; i < samples.global_batch; ++i) {
      EXPECT_EQ(batch.sample_index[i].item<int64_t>(), next++);
    }
  }
  EXPECT_GT(position.data, 7);
  EXPECT_GT(position.image_data, 10);

  // The same from the middle on, in other micro-batches.
  StepLoader again = sets.loader();
  StepPosition middle;
  for (; middle.step < kSteps / 2; ++middle.step) {
    const StepSamples samples = again.next();
    (samples.kind == StepKind::kData ? middle.data : middle.image_data) += samples.global_batch;
  }
  const Sets other(config_of(4, 6));
  StepLoader resumed = other.loader(middle);
  for (int64_t step = middle.step; step < kSteps; ++step) {
    const data::Batch expected = whole(again.next());
    const data::Batch got = whole(resumed.next());
    EXPECT_TRUE(got.images.equal(expected.images)) << step;
    EXPECT_TRUE(got.sample_index.equal(expected.sample_index)) << step;
  }
}

TEST(StepSamplesTest, RanksShareEveryStep) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const RunConfig config = config_of(1, 0);
    const Sets sets(config);
    const parallel::Mesh mesh(world, config.parallel.mesh());
    StepLoader own = sets.loader({}, mesh);
    StepLoader all = sets.loader();
    for (int64_t step = 0; step < kSteps; ++step) {
      const StepSamples expected = all.next();
      const StepSamples got = own.next();
      EXPECT_EQ(got.kind, expected.kind) << step;
      const int64_t half = expected.global_batch / 2;
      const data::Batch part = whole(got);
      EXPECT_TRUE(
          part.images.equal(whole(expected).images.narrow(0, mesh.data_rank() * half, half)))
          << step;
    }
  });
}

}  // namespace step_samples_test
}  // namespace kinora::train
