// Training on pictures of many sizes, from files to the log and over a resume.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/data/bucket_order.h"
#include "kinora/data/run_data.h"
#include "kinora/io/image.h"
#include "kinora/train/step_samples.h"
#include "kinora/train/trainer.h"
#include "tests/data/files.h"
#include "tests/places.h"
#include "tests/train/run_lines.h"

namespace kinora::train {
namespace bucket_training_test {

constexpr int64_t kSamples = 32;
constexpr int64_t kStepsAnEpoch = 6;

// 32 pictures, each of a class of its own: 8 of 40 x 40, 8 of 32 x 57 and 16 of 16 x 16 pixels. In
// steps of two batches an epoch comes out even.
class BucketTrainingTest : public ::testing::Test {
 protected:
  BucketTrainingTest() {
    for (int64_t i = 0; i < kSamples; ++i) {
      const int64_t height = i < 8 ? 40 : (i < 16 ? 32 : 16);
      const int64_t width = i < 8 ? 40 : (i < 16 ? 57 : 16);
      io::Image image = data::grey_image(static_cast<uint8_t>(8 * i), height, width);
      for (size_t place = 0; place < image.pixels.size(); place += 7) {
        image.pixels[place] = static_cast<uint8_t>(place * static_cast<size_t>(i + 3));
      }
      const std::string name = "set/c" + std::to_string(10 + i) + "/picture.png";
      folder_.write(name, io::encode_png(image));
    }
  }

  [[nodiscard]] RunConfig config(const std::string& run,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides = {
        "run.dir=" + (folder_.path() / run).string(),
        "data.source=folder",
        "data.path=[" + (folder_.path() / "set").string() + "]",
        R"(data.buckets={"32px": {1: [1.0, 2]}, "16px": {1: [1.0, 4]}})",
        "data.bucket_multiple=8",
        "data.bucket_batches=2",
        "data.flip=true",
        "data.threads=2",
        "data.text=tokens",
        "text.tokenizer=" + source_path("configs/captions/spiece.model").string(),
        "model.architecture=stdit3",
        "model.depth=1",
        "model.hidden=48",
        "model.heads=2",
        "model.patch=4",
        "model.text_tokens=8",
        "model.text_encoder.layers=1",
        "model.text_encoder.width=16",
        "model.learn_sigma=false",
        "objective.kind=flow",
        "lr.value=1e-3",
        "train.steps=12",
        "train.device=cpu",
        "train.threads=1",
        "train.seed=5",
        "checkpoint.every=6",
        "sample.every=0",
        "sample.steps=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_config<RunConfig>({"{}", "the test"}, overrides);
  }

  [[nodiscard]] std::vector<nlohmann::json> log(const std::string& run) const {
    return run_lines(folder_.path() / run);
  }

  /// What a step computed, and of what.
  static std::string computed(const nlohmann::json& line) {
    std::string text;
    for (const char* key : {"step", "samples", "frames", "height", "width", "loss", "grad_norm"}) {
      text += std::string(key) + " " + line.at(key).dump() + " ";
    }
    return text;
  }

  data::TemporaryFolder folder_;
};

TEST_F(BucketTrainingTest, TwelveStepsAreSixAndSixAfterAResume) {
  Trainer(config("whole"), {}).run();
  Trainer(config("parts", {"train.steps=6"}), {}).run();
  const TrainResult resumed =
      Trainer(config("parts"), {.mode = Resume::Mode::kAuto, .checkpoint = {}}).run();
  EXPECT_TRUE(resumed.complete);
  const std::vector<nlohmann::json> whole = log("whole");
  const std::vector<nlohmann::json> parts = log("parts");
  ASSERT_EQ(whole.size(), 12U);
  ASSERT_EQ(parts.size(), 12U);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(computed(whole[i]), computed(parts[i]));
  }
}

TEST_F(BucketTrainingTest, AResumeInTheMiddleOfAnEpoch) {
  Trainer(config("whole", {"train.steps=8"}), {}).run();
  Trainer(config("parts", {"train.steps=4"}), {}).run();
  (void)Trainer(config("parts", {"train.steps=8"}), {.mode = Resume::Mode::kAuto, .checkpoint = {}})
      .run();
  const std::vector<nlohmann::json> whole = log("whole");
  const std::vector<nlohmann::json> parts = log("parts");
  ASSERT_EQ(parts.size(), 8U);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(computed(whole[i]), computed(parts[i]));
  }
}

TEST_F(BucketTrainingTest, TheLogHasTheSizesOfTheOrder) {
  const RunConfig run = config("sizes");
  Trainer(run, {}).run();
  const std::vector<nlohmann::json> lines = log("sizes");
  ASSERT_EQ(lines.size(), 12U);

  const data::RunData data = open_data(run.data);
  const data::LoaderOptions options = data::loader_options(run.data);
  data::BucketOrder order(*data.train,
                          {.table = options.buckets, .batches_per_step = 2, .seed = 5});
  std::map<std::string, int64_t> samples_of_size;
  for (const nlohmann::json& line : lines) {
    const data::BucketStep step = order.next();
    const data::Bucket& bucket = order.table().buckets().at(static_cast<size_t>(step.bucket));
    EXPECT_EQ(line.at("samples"), step.indices.size());
    EXPECT_EQ(line.at("frames"), 1);
    EXPECT_EQ(line.at("height"), bucket.height);
    EXPECT_EQ(line.at("width"), bucket.width);
    EXPECT_GT(line.at("loss"), 0.0);
    samples_of_size[std::to_string(bucket.height) + " x " + std::to_string(bucket.width)] +=
        std::ssize(step.indices);
  }
  // Two epochs of 1024 pixels as 32 x 32 and nearly as 9:16, and of 256.
  EXPECT_EQ(samples_of_size,
            (std::map<std::string, int64_t>{{"16 x 16", 32}, {"24 x 40", 16}, {"32 x 32", 16}}));
}

TEST_F(BucketTrainingTest, AnEpochHoldsEverySampleOnce) {
  const RunConfig run = config("samples");
  const data::RunData data = open_data(run.data);
  const parallel::Mesh mesh({}, run.parallel.mesh());
  StepLoader loader(run, {.data = data.train.get()}, mesh, {}, /*pinned=*/false);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> seen(kSamples);
    for (int64_t step = 0; step < kStepsAnEpoch; ++step) {
      const StepSamples samples = loader.next();
      ASSERT_EQ(samples.batches.size(), 2U);
      for (const data::Batch& batch : samples.batches) {
        EXPECT_EQ(batch.images.sizes().slice(2), samples.batches.front().images.sizes().slice(2));
        for (int64_t i = 0; i < batch.labels.size(0); ++i) {
          ++seen.at(static_cast<size_t>(batch.labels.const_data_ptr<int64_t>()[i]));
        }
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1)) << epoch;
  }
}

}  // namespace bucket_training_test
}  // namespace kinora::train
