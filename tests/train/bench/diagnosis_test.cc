// What kinora doctor says of the speed of collectives.
#include "kinora/train/bench/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kinora::train {
namespace diagnosis_test {

using comm::Operation;

TEST(DiagnosisTest, CollectivesAreALatencyAndARate) {
  const Findings found = describe_collectives(
      {{.operation = Operation::kAllReduce, .samples = {}, .link = {20e-6, 5e9}}}, 4);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].section, "collectives");
  EXPECT_EQ(found[0].name, "all_reduce of 4 ranks, sent by each");
  EXPECT_EQ(found[0].value, "5 GB/s after 20 us");
  EXPECT_EQ(found[0].number, 5e9);
  EXPECT_EQ(found[0].advice, "");
}

TEST(DiagnosisTest, ABusyMachineMayTakeNoLongerForLargerMessages) {
  // As times that do not grow give it.
  const comm::Link level = comm::fit_link({1e4, 1e5, 1e6}, {3e-4, 2e-4, 1e-4});
  const Findings found =
      describe_collectives({{.operation = Operation::kAllGather, .samples = {}, .link = level}}, 2);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, "all_gather of 2 ranks, sent by each");
  EXPECT_THAT(found[0].value, testing::EndsWith(" us, larger messages took no longer"));
  EXPECT_EQ(found[0].number, std::nullopt);  // no infinite rate in --json
  EXPECT_EQ(found[0].advice, "the machine is too busy to measure it. Try again");
}

}  // namespace diagnosis_test
}  // namespace kinora::train
