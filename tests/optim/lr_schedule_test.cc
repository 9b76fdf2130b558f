#include "kinora/optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "kinora/core/error.h"

namespace kinora::optim {
namespace lr_schedule_test {

LrSchedule schedule(LrSchedule::Kind kind) {
  return {kind, 0.1, 10, 110, 0.2};
}

TEST(LrScheduleTest, WarmsUpLinearlyWhateverTheKind) {
  for (const auto kind :
       {LrSchedule::Kind::kConstant, LrSchedule::Kind::kCosine, LrSchedule::Kind::kLinear}) {
    EXPECT_DOUBLE_EQ(schedule(kind).at(0), 0.01);
    EXPECT_DOUBLE_EQ(schedule(kind).at(4), 0.05);
    EXPECT_DOUBLE_EQ(schedule(kind).at(9), 0.1);
    EXPECT_DOUBLE_EQ(schedule(kind).at(10), 0.1);
  }
}

TEST(LrScheduleTest, ConstantStays) {
  EXPECT_EQ(schedule(LrSchedule::Kind::kConstant).at(1'000'000), 0.1);
  EXPECT_EQ((LrSchedule{LrSchedule::Kind::kConstant, 0.3, 0, 0, 0.0}.at(0)), 0.3);
}

TEST(LrScheduleTest, CosineFollowsItsClosedForm) {
  const LrSchedule cosine = schedule(LrSchedule::Kind::kCosine);
  EXPECT_DOUBLE_EQ(cosine.at(60), 0.02 + 0.08 * 0.5);
  EXPECT_NEAR(cosine.at(35), 0.02 + 0.08 * 0.5 * (1.0 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(cosine.at(77), 0.02 + 0.04 * (1.0 + std::cos(std::numbers::pi * 0.67)), 1e-15);
  EXPECT_DOUBLE_EQ(cosine.at(110), 0.02);
  EXPECT_DOUBLE_EQ(cosine.at(10'000), 0.02);
}

TEST(LrScheduleTest, LinearFollowsItsClosedForm) {
  const LrSchedule linear = schedule(LrSchedule::Kind::kLinear);
  EXPECT_DOUBLE_EQ(linear.at(35), 0.08);
  EXPECT_DOUBLE_EQ(linear.at(60), 0.06);
  EXPECT_DOUBLE_EQ(linear.at(110), 0.02);
  EXPECT_DOUBLE_EQ(linear.at(10'000), 0.02);
}

TEST(LrScheduleTest, NamesAreParsed) {
  EXPECT_EQ(parse_lr_kind("constant"), LrSchedule::Kind::kConstant);
  EXPECT_EQ(parse_lr_kind("cosine"), LrSchedule::Kind::kCosine);
  EXPECT_EQ(parse_lr_kind("linear"), LrSchedule::Kind::kLinear);
  EXPECT_THROW((void)parse_lr_kind("step"), Error);
}

std::string complaint(const LrSchedule& bad) {
  try {
    bad.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "no error";
}

TEST(LrScheduleTest, BadSettingsAreNamed) {
  using testing::HasSubstr;
  EXPECT_EQ(complaint(schedule(LrSchedule::Kind::kCosine)), "no error");
  EXPECT_THAT(complaint({LrSchedule::Kind::kConstant, -1.0, 0, 0, 0.0}), HasSubstr("value"));
  EXPECT_THAT(complaint({LrSchedule::Kind::kConstant, NAN, 0, 0, 0.0}), HasSubstr("nan"));
  EXPECT_THAT(complaint({LrSchedule::Kind::kConstant, 1.0, -1, 0, 0.0}), HasSubstr("warmup"));
  EXPECT_THAT(complaint({LrSchedule::Kind::kLinear, 1.0, 10, 10, 0.0}), HasSubstr("horizon"));
  EXPECT_THAT(complaint({LrSchedule::Kind::kLinear, 1.0, 0, 10, 1.5}), HasSubstr("final_fraction"));
}

}  // namespace lr_schedule_test
}  // namespace kinora::optim
