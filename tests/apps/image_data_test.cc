// Steps of clips and steps of images in one run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace image_data_test {

using testing::HasSubstr;

/// Clips of 4 frames in steps of 8, images in steps of 16, both with captions.
const Arguments kMixed =
    joined(kReads, {"data.source=moving_shapes", "data.frames=4", "model.learn_sigma=false",
                    "objective.kind=flow", "image_data.share=0.4", "image_data.height=16",
                    "image_data.width=16", "image_data.text=tokens", "image_data.count=100",
                    "image_data.global_batch=16"});

class ImageDataTest : public RunTest {
 protected:
  [[nodiscard]] static Arguments mixed(const std::string& architecture,
                                       const Arguments& more = {}) {
    Arguments arguments = kMixed;
    arguments.push_back("model.architecture=" + architecture);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  [[nodiscard]] static int64_t count_of(const std::vector<LogLine>& log, const std::string& kind) {
    int64_t count = 0;
    for (const LogLine& line : log) {
      count += line.at("kind") == kind ? 1 : 0;
    }
    return count;
  }
};

TEST_F(ImageDataTest, TheLogTellsTheKindsApartAndTheCheckpointCountsBoth) {
  train_well(run_dir("mixed"),
             mixed("stdit", {"sample.every=20", "sample.count=2", "frame_masks.image_head=0.3"}));
  const std::vector<LogLine> log = read_log(run_dir("mixed"));
  ASSERT_EQ(log.size(), 20U);
  const int64_t images = count_of(log, "image_data");
  EXPECT_EQ(count_of(log, "data"), 20 - images);
  ASSERT_GT(images, 0);
  ASSERT_LT(images, 20);
  const auto state =
      nlohmann::json::parse(read_text(run_dir("mixed") / "checkpoints/step-20/manifest.json"))
          .at("state");
  EXPECT_EQ(state.at("position"), (20 - images) * 8);
  EXPECT_EQ(state.at("image_position"), images * 16);
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir("mixed"))) {
    if (entry.path().filename().string().starts_with("events.")) {
      events += read_text(entry.path());
    }
  }
  EXPECT_THAT(events, HasSubstr("train/loss"));
  EXPECT_THAT(events, HasSubstr("train_image_data/loss"));

  train_well(run_dir("clips"), mixed("stdit", {"image_data.share=0", "train.steps=2"}));
  EXPECT_FALSE(read_log(run_dir("clips")).front().contains("kind"));
}

TEST_F(ImageDataTest, EveryModelOfClipsTakesImages) {
  for (const char* architecture : {"stdit2", "stdit3", "latte", "vdit"}) {
    train_well(run_dir(architecture),
               mixed(architecture, {"train.steps=8", "model.hidden=48", "train.self_test=false",
                                    "image_data.share=0.5"}));
    const std::vector<LogLine> log = read_log(run_dir(architecture));
    EXPECT_GT(count_of(log, "image_data"), 0) << architecture;
    EXPECT_GT(count_of(log, "data"), 0) << architecture;
  }
}

TEST_F(ImageDataTest, TwoRanksLearnAsOneDoes) {
  const Arguments passes = {"train.micro_batch=4", "image_data.micro_batch=8"};
  Arguments command = train_command(run_dir("two"), mixed("stdit", passes));
  command.insert(command.end(), {"--ranks", "2"});
  const Outcome outcome = run_kinora(command, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  train_well(run_dir("one"), mixed("stdit", passes));
  const std::vector<LogLine> two = read_log(run_dir("two"));
  const std::vector<LogLine> one = read_log(run_dir("one"));
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(two[i].at("kind"), one[i].at("kind")) << i;
    // The sum over ranks adds in another order.
    EXPECT_NEAR(two[i].at("loss").get<double>(), one[i].at("loss").get<double>(), 1e-4) << i;
  }
}

TEST_F(ImageDataTest, WhatDoesNotFitIsRefusedBeforeTheFirstStep) {
  const auto expect_refused = [this](const Arguments& more, const std::string& message) {
    const Outcome outcome = train(run_dir("refused"), mixed("stdit", more));
    EXPECT_EQ(outcome.exit_code, kUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_refused({"image_data.share=1"}, "image_data.share");
  expect_refused({"image_data.frame_layout=strip"},
                 "image_data.frame_layout must be image for generated sets");
  expect_refused({"image_data.validation=4"}, "image_data.share must be 0 unless");
  expect_refused({"image_data.micro_batch=5"}, "must divide image_data.global_batch");
  expect_refused({"image_data.height=24"}, "must be those of the image_data, 24 x 16, got 16 x 16");
  expect_refused({"image_data.text=none"}, "the data must have tokens");
  Arguments odd = train_command(run_dir("refused"), mixed("stdit", {"image_data.global_batch=3"}));
  odd.insert(odd.end(), {"--ranks", "2"});
  const Outcome outcome = run_kinora(odd, folder());
  EXPECT_EQ(outcome.exit_code, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("image_data.global_batch must be a multiple of the 2 ranks"));
}

}  // namespace image_data_test
}  // namespace kinora::apps
