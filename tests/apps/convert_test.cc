// kinora convert: one file of weights from a checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace convert_test {

namespace fs = std::filesystem;

class ConvertTest : public RunTest {
 protected:
  void SetUp() override { train_well(run_dir("run"), {"checkpoint.export=true"}); }

  Outcome convert(const Arguments& more) const {
    Arguments arguments = {"convert", run_dir("run").string(), "--to", target().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }
  [[nodiscard]] fs::path target() const { return folder() / "converted.safetensors"; }
};

TEST_F(ConvertTest, WritesWhatTheRunExports) {
  const Outcome outcome = convert({});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("averaged weights of "));
  EXPECT_EQ(read_text(target()), read_text(run_dir("run") / "model.safetensors"));
}

TEST_F(ConvertTest, OtherWeightsAndTypes) {
  ASSERT_EQ(convert({}).exit_code, 0);
  const std::string averaged = read_text(target());
  ASSERT_EQ(convert({"--raw"}).exit_code, 0);
  EXPECT_NE(read_text(target()), averaged);
  EXPECT_EQ(read_text(target()).size(), averaged.size());
  ASSERT_EQ(convert({"--dtype", "bf16"}).exit_code, 0);
  EXPECT_LT(read_text(target()).size(), averaged.size() * 3 / 4);
  const Outcome sampled = run_kinora({"sample", "--checkpoint", target().string(), "--count", "1",
                                      "--steps", "2", "--out", (folder() / "out").string()},
                                     folder());
  EXPECT_EQ(sampled.exit_code, 0) << sampled.err;
}

TEST_F(ConvertTest, WhatIsNotThereIsRefused) {
  const Outcome no_average = convert({"--ema", "7"});
  EXPECT_EQ(no_average.exit_code, 4);
  EXPECT_THAT(no_average.err, testing::HasSubstr("has no ema.7"));
  EXPECT_EQ(convert({"--ema", "0", "--raw"}).exit_code, 2);
  const Outcome nowhere =
      run_kinora({"convert", folder().string(), "--to", target().string()}, folder());
  EXPECT_EQ(nowhere.exit_code, 4);
  EXPECT_THAT(nowhere.err, testing::HasSubstr("neither a checkpoint nor a run"));
  EXPECT_FALSE(fs::exists(target()));
}

}  // namespace convert_test
}  // namespace kinora::apps
