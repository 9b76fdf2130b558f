#include "kinora/train/records/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/picture_texts.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/records/run_state.h"
#include "kinora/train/run_config.h"

namespace kinora::train {
namespace run_report_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class RunReportTest : public testing::Test {
 public:
  ~RunReportTest() override { fs::remove_all(folder_); }

 protected:
  RunReportTest() {
    std::string name = testing::TempDir() + "kinora-report-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    const RunDirectory run(folder_, {.mode = Resume::Mode::kAuto, .checkpoint = {}});
    std::ofstream(run.config_file()) << "model.name: <b>bold</b>\n";
    write_state(folder_, {.state = RunState::kStopped, .step = 3, .steps = 10});
  }

  fs::path folder_;
};

TEST_F(RunReportTest, MetricsAreTheNumbersOfTheLog) {
  std::ofstream(folder_ / "log.jsonl") << R"({"step": 1, "loss": 2.0, "kind": "data"})"
                                       << "\ntorn\n"
                                       << R"({"step": 2, "loss": "nan", "validation_raw": 0.5})"
                                       << "\n"
                                       << R"({"step": 3, "loss": 1.0})"
                                       << "\n";
  const auto metrics = read_metrics(folder_ / "log.jsonl");
  EXPECT_EQ(metrics.size(), 2U);
  EXPECT_THAT(metrics.at("loss").steps, ElementsAre(1.0, 3.0));
  EXPECT_THAT(metrics.at("loss").values, ElementsAre(2.0, 1.0));
  EXPECT_THAT(metrics.at("validation_raw").steps, ElementsAre(2.0));
  EXPECT_THROW((void)read_metrics(folder_ / "none"), Error);
}

TEST_F(RunReportTest, PromptsStandBesideTheirPictures) {
  io::Image image;
  io::set_size(image, 4, 4);
  const auto write = [&](const char* name, const std::string& text) {
    io::write_file_atomic(folder_ / "samples" / name,
                          io::with_png_texts(io::encode_png(image),
                                             std::vector<io::PictureText>{{kPromptsOfGrid, text}}));
  };
  write("step-1.png", R"(["a <b>red</b> circle", "two stars"])");
  write("step-2.png", R"(["a cross", 3])");
  write("step-3.png", "no JSON");
  const std::string page = report_page(folder_);
  EXPECT_THAT(page,
              HasSubstr("<ol><li>a &lt;b&gt;red&lt;/b&gt; circle</li><li>two stars</li></ol>"));
  EXPECT_THAT(page, HasSubstr("<ol><li>a cross</li></ol>"));
  EXPECT_THAT(page, HasSubstr("samples of step 3"));
}

TEST_F(RunReportTest, ThePageHoldsEverythingAndFetchesNothing) {
  std::ofstream log(folder_ / "log.jsonl");
  for (int step = 1; step <= 3; ++step) {
    log << R"({"step": )" << step
        << R"(, "loss": 0.5, "lr": 1e-4, "samples_per_s": 12.0, "step_s": 0.25,)"
        << R"( "peak_memory": 1073741824, "validation_ema0": 0.25, "validation_ema0_t0": 0.125})"
        << "\n";
  }
  log.close();
  io::Image image;
  io::set_size(image, 4, 2000);  // wider than a page
  io::write_png(folder_ / "samples/step-2.png", image);
  std::ofstream(folder_ / "samples/step-x.png") << "not one of ours";
  const std::string page = report_page(folder_);
  for (const char* part : {"stopped",
                           "3 of 10",
                           "Loss",
                           "training",
                           "validation, ema0",
                           "by band of t",
                           "cleanest: ema0",
                           "Learning rate",
                           "Samples a second",
                           "optimizer step",
                           "recent samples/s",
                           "training time",
                           "peak memory",
                           "name='viewport'",
                           "1 GiB",
                           "best validation_ema0",
                           "0.25 at step 1",
                           "samples of step 2",
                           "data:image/png;base64,",
                           "&lt;b&gt;bold&lt;/b&gt;"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src='http")));
  EXPECT_THAT(page, Not(HasSubstr("href")));
}

TEST_F(RunReportTest, APictureSurvivesAsText) {
  io::Image image;
  io::set_size(image, 1, 1);
  image.pixels = {1, 2, 3};
  io::write_png(folder_ / "samples/step-1.png", image);
  const std::string page = report_page(folder_);
  const std::string prefix = "base64,";
  const size_t begin = page.find(prefix) + prefix.size();
  const std::string text = page.substr(begin, page.find('\'', begin) - begin);
  // A PNG begins with 89 50 4e 47 0d 0a 1a 0a 00 00 00 0d 49 48 44 52 (RFC 2083), in base64:
  EXPECT_TRUE(text.starts_with("iVBORw0KGgoAAAANSUhEUg")) << text;
  EXPECT_EQ(text.size() % 4, 0U);
  // ... and ends with IEND and its checksum ae 42 60 82; how those lie depends on the length.
  const size_t padding = text.size() - text.find_last_not_of('=') - 1;
  const std::vector<std::string> ends = {"rkJggg==", "5CYII=", "QmCC"};
  const std::string end = padding == 2 ? ends[0] : padding == 1 ? ends[1] : ends[2];
  EXPECT_TRUE(text.ends_with(end)) << text;
}

TEST_F(RunReportTest, ABrokenPictureIsNamedInItsPlace) {
  io::Image image;
  io::set_size(image, 1, 1);
  io::write_png(folder_ / "samples/step-1.png", image);
  std::ofstream(folder_ / "samples/step-2.png") << "cut off";
  const std::string page = report_page(folder_);
  EXPECT_THAT(page, HasSubstr("data:image/png;base64,"));
  EXPECT_THAT(page, HasSubstr("samples/step-2.png must be a PNG"));
  EXPECT_THAT(page, HasSubstr("step 2"));
}

TEST_F(RunReportTest, WhyARunDiedIsSaid) {
  write_state(folder_, {.state = RunState::kTraining, .step = 3, .steps = 10});
  EXPECT_THAT(report_page(folder_), HasSubstr("its process ended without a word"));
  write_state(folder_, {.state = RunState::kDied,
                        .step = 3,
                        .steps = 10,
                        .device = "a <device>",
                        .error = "[data] the disk \xff is full"});
  const std::string page = report_page(folder_);
  EXPECT_THAT(page, HasSubstr("[data] the disk \\xff is full"));
  EXPECT_THAT(page, HasSubstr("a &lt;device&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("ended without a word")));
}

TEST_F(RunReportTest, WhatDiffersFromTheDefaultsStandsOnTop) {
  RunConfig config;
  config.run_dir = folder_.string();
  config.train.steps = 77;
  std::ofstream(folder_ / "config.yaml") << dump_config(config);
  const std::string page = report_page(folder_);
  const std::string top = page.substr(page.find("differs from the defaults"));
  EXPECT_THAT(top.substr(0, top.find("<details>")), HasSubstr("train.steps: 77"));
  EXPECT_THAT(top.substr(0, top.find("<details>")), Not(HasSubstr("train.seed")));
  EXPECT_THAT(top.substr(top.find("<details>")), HasSubstr("seed: "));
}

TEST_F(RunReportTest, ARunWithoutALogHasAPageToo) {
  EXPECT_THAT(report_page(folder_), HasSubstr("Configuration"));
}

}  // namespace run_report_test
}  // namespace kinora::train
