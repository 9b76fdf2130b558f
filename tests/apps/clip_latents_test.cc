// Training from precomputed latents of clips and embedded texts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "kinora/io/safetensors.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace clip_latents_test {

using testing::HasSubstr;

constexpr int64_t kClips = 24;

std::vector<float> waves(int64_t count, double step) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(std::sin(step * static_cast<double>(i))));
  }
  return values;
}

io::SafetensorsTensor floats(const std::string& name, std::vector<int64_t> shape,
                             const std::vector<float>& values) {
  return {.name = name,
          .dtype = DType::kF32,
          .shape = std::move(shape),
          .data = std::as_bytes(std::span(values))};
}

class ClipLatentsTest : public RunTest {
 protected:
  /// 24 clips of 6 frames, 4 x 8 x 8, with a text each.
  ClipLatentsTest() {
    const std::vector<float> latents = waves(kClips * 4 * 6 * 64, 0.37);
    io::write_safetensors(folder() / "latents.safetensors",
                          std::vector{floats("latents", {kClips, 4, 6, 8, 8}, latents)},
                          {{"fps", "24"}, {"height", "64"}, {"width", "64"}});
    const std::vector<float> texts = waves(kClips * 5 * 12, 0.11);
    const std::vector<float> pooled = waves(kClips * 12, 0.23);
    const std::vector<int64_t> lengths(kClips, 4);
    io::write_safetensors(folder() / "texts.safetensors",
                          std::vector{floats("embeddings", {kClips, 5, 12}, texts),
                                      floats("pooled", {kClips, 12}, pooled),
                                      {.name = "lengths",
                                       .dtype = DType::kI64,
                                       .shape = {kClips},
                                       .data = std::as_bytes(std::span(lengths))}});
  }

  [[nodiscard]] Arguments clips(const std::string& architecture, const Arguments& more = {}) const {
    Arguments arguments = {"data.source=latents",
                           "data.path=[" + (folder() / "latents.safetensors").string() + "]",
                           "data.frames=4",
                           "data.text=file",
                           "data.text_embeddings=" + (folder() / "texts.safetensors").string(),
                           "model.architecture=" + architecture,
                           "model.hidden=48",
                           "model.in_channels=4",
                           "model.compression=8",
                           "model.text_channels=12",
                           "model.text_tokens=5",
                           "train.global_batch=4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(ClipLatentsTest, TrainsResumesExactlyAndSamples) {
  const Arguments masked = {"data.validation=4", "validation.every=4",
                            "frame_masks.image_head=0.3"};
  train_well(run_dir("whole"), clips("stdit3", masked));
  Arguments arguments = clips("stdit3", masked);
  arguments.insert(arguments.end(), {"train.steps=10", "--resume", "auto"});
  train_well(run_dir("parts"), arguments);
  arguments.emplace_back("train.steps=20");
  train_well(run_dir("parts"), arguments);
  expect_same_state(run_dir("whole") / "checkpoints/step-20",
                    run_dir("parts") / "checkpoints/step-20");
  expect_same_log(run_dir("whole"), run_dir("parts"), 20);

  const Outcome outcome =
      run_kinora({"sample", "--run", run_dir("whole").string(), "--out",
                  (folder() / "samples").string(), "--count", "2", "--device", "cpu"},
                 folder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto samples = io::SafetensorsFile::open(folder() / "samples/latents.safetensors");
  ASSERT_NE(samples.find("latents"), nullptr);
  EXPECT_EQ(samples.find("latents")->shape, (std::vector<int64_t>{2, 4, 4, 8, 8}));
}

TEST_F(ClipLatentsTest, EveryModelOfClipsTakesThem) {
  for (const char* architecture : {"stdit", "stdit2", "latte", "vdit"}) {
    train_well(run_dir(architecture), clips(architecture, {"train.steps=2", "data.frame_stride=1",
                                                           "train.self_test=false"}));
    EXPECT_EQ(read_log(run_dir(architecture)).size(), 2U) << architecture;
  }
}

TEST_F(ClipLatentsTest, WhatDoesNotFitIsRefusedBeforeTheFirstStep) {
  const auto expect_refused = [this](const Arguments& more, const std::string& message) {
    const Outcome outcome = train(run_dir("refused"), clips("stdit3", more));
    EXPECT_EQ(outcome.exit_code, kUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_refused({"data.frames=7"}, "clips of at least 7 frames");
  expect_refused({"model.frames=2"}, "model.frames must be those of the data, 4, got 2");
  expect_refused({"model.compression=2"},
                 "latents of 4 x 8 x 8 (64 x 64 pixels), but model.compression is 2");
  expect_refused({"model.in_channels=3"}, "latents of 4 channels");
  expect_refused({"model.architecture=dit"}, "is a model of images, but model.frames is 4");
}

}  // namespace clip_latents_test
}  // namespace kinora::apps
