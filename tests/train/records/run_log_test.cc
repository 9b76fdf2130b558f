#include "kinora/train/records/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data/files.h"
#include "tests/file_size_limit.h"
#include "tests/train/run_lines.h"

namespace kinora::train {
namespace run_log_test {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class RunLogTest : public testing::Test {
 protected:
  [[nodiscard]] RunDirectory directory() const { return RunDirectory(folder_.path()); }

  [[nodiscard]] std::vector<Json> lines() const { return run_lines(folder_.path()); }

  /// All event files as they are: TensorBoard keeps tags as plain text.
  [[nodiscard]] std::string events() const {
    std::ostringstream text;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with("events.")) {
        text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      }
    }
    return text.str();
  }

  data::TemporaryFolder folder_;
};

StepRecord record_of(int64_t step) {
  return {.step = step,
          .size = std::nullopt,
          .loss = 0.5,
          .lr = 1e-4,
          .grad_norm = 2.0,
          .samples_per_s = 64.0,
          .times = {.step = 2.0, .data = 0.5, .communication = 0.25},
          .slowest = {},
          .validation = {}};
}

TEST_F(RunLogTest, ALineHasWhatEveryStepHas) {
  RunLog log(directory(), 0, 1);
  log.add_step(record_of(1));
  EXPECT_EQ(lines(), std::vector<Json>({{{"step", 1},
                                         {"loss", 0.5},
                                         {"lr", 1e-4},
                                         {"grad_norm", 2.0},
                                         {"samples_per_s", 64.0},
                                         {"step_s", 2.0},
                                         {"compute_s", 1.25},
                                         {"communication_s", 0.25},
                                         {"communication_share", 0.125},
                                         {"data_wait_s", 0.5},
                                         {"data_wait_share", 0.25}}}));
}

TEST_F(RunLogTest, ALineHasMoreWhereThereIsMore) {
  StepRecord record = record_of(1);
  record.kind = StepKind::kImageData;
  record.has_kinds = true;
  record.size =
      StepSize{.samples = 12, .size = inference::ClipSize{.frames = 3, .height = 16, .width = 32}};
  record.peak_memory = 1 << 20;
  record.loss_scale = 1024.0;
  record.distance = 0.25;
  record.skipped = true;
  record.slowest = {.seconds = 1.5, .name = "a.png"};
  record.validation = {{"raw", {.mean = 0.25, .bands = {0.125, 0.375}}}};
  record.ranks = RankTimes{.step = 7,
                           .compute = {.min = 1.0, .median = 2.0, .max = 3.0},
                           .communication = {},
                           .data = {},
                           .slow_rank = 2,
                           .slowness = 1.5};
  RunLog log(directory(), 0, 1);
  log.add_step(record);
  log.flush();
  const Json line = lines().at(0);
  const Json want = {{"kind", "image_data"},
                     {"samples", 12},
                     {"frames", 3},
                     {"height", 16},
                     {"width", 32},
                     {"peak_memory", 1 << 20},
                     {"loss_scale", 1024.0},
                     {"distance", 0.25},
                     {"skipped", true},
                     {"slowest_sample", "a.png"},
                     {"slowest_sample_s", 1.5},
                     {"validation_raw", 0.25},
                     {"validation_raw_t0", 0.125},
                     {"validation_raw_t1", 0.375},
                     {"ranks_step", 7},
                     {"slow_rank", 2},
                     {"slowness", 1.5},
                     {"compute_s_min", 1.0},
                     {"compute_s_median", 2.0},
                     {"compute_s_max", 3.0}};
  for (const auto& [key, value] : want.items()) {
    EXPECT_EQ(line.value(key, Json()), value) << key;
  }
  for (const char* tag : {"train_image_data/loss", "speed_image_data/samples_per_s",
                          "validation/raw", "validation_raw/t1", "ranks/compute_s_median"}) {
    EXPECT_THAT(events(), HasSubstr(tag));
  }
  EXPECT_THAT(events(), Not(HasSubstr("train/loss")));
}

TEST_F(RunLogTest, TensorBoardHasEveryFewSteps) {
  RunLog log(directory(), 0, 3);
  log.add_step(record_of(1));
  log.add_step(record_of(2));
  log.flush();
  EXPECT_THAT(events(), Not(HasSubstr("train/loss")));
  log.add_step(record_of(3));
  log.flush();
  EXPECT_THAT(events(), HasSubstr("train/loss"));
  EXPECT_EQ(lines().size(), 3U);
}

TEST_F(RunLogTest, WhatComesAfterTheResumedStepIsForgotten) {
  {
    RunLog log(directory(), 0, 1);
    for (int64_t step = 1; step <= 4; ++step) {
      log.add_step(record_of(step));
    }
  }
  RunLog log(directory(), 2, 1);
  log.add_step(record_of(3));
  std::vector<int64_t> steps;
  for (const Json& line : lines()) {
    steps.push_back(line.at("step"));
  }
  EXPECT_EQ(steps, std::vector<int64_t>({1, 2, 3}));
}

TEST_F(RunLogTest, GridsGoToTensorBoard) {
  RunLog log(directory(), 0, 1);
  io::Image grid;
  grid.width = 2;
  grid.height = 2;
  grid.pixels.assign(12, 0);
  log.add_samples(5, grid);
  EXPECT_THAT(events(), HasSubstr("samples"));
  EXPECT_THAT(events(), HasSubstr("PNG"));
}

TEST_F(RunLogTest, AFullDiskCostsLinesAndNotTheRun) {
  constexpr int64_t kWritten = 40;  // so much that messages fit into the limit, too
  RunLog log(directory(), 0, 1);
  for (int64_t step = 1; step <= kWritten; ++step) {
    log.add_step(record_of(step));
  }
  log.flush();
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit full(fs::file_size(folder_.path() / "log.jsonl"));
    for (int64_t step = kWritten + 1; step < kWritten + 5; ++step) {
      log.add_step(record_of(step));
      log.flush();
    }
  }
  log.add_step(record_of(kWritten + 5));
  log.flush();
  const std::string said = testing::internal::GetCapturedStderr();
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), kWritten + 1U) << "no half of a line either";
  EXPECT_EQ(all[kWritten - 1]["step"], kWritten);
  EXPECT_EQ(all[kWritten]["step"], kWritten + 5);
  for (const std::string what : {"log.jsonl", "TensorBoard's file"}) {
    const std::string once = "the run goes on without " + what;
    const size_t first = said.find(once);
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find(once, first + 1), std::string::npos) << said;
  }
}

TEST_F(RunLogTest, ADamagedLogIsSetAside) {
  std::ofstream(folder_.path() / "log.jsonl") << "{\"step\": 1}\n\x1b[2J\n{\"step\": 2}\n";
  testing::internal::CaptureStderr();
  RunLog log(directory(), 2, 1);
  log.add_step(record_of(3));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines().size(), 3U);
  EXPECT_THAT(said, HasSubstr("has 1 damaged line, the first is line 2"));
  EXPECT_THAT(said, HasSubstr("damaged-log.jsonl"));
  EXPECT_EQ(said.find('\x1b'), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_.path() / "damaged-log.jsonl"));
}

}  // namespace run_log_test
}  // namespace kinora::train
