// kinora compare: two checkpoints, or one in two precisions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace compare_test {

using testing::HasSubstr;

class CompareCommandTest : public RunTest {
 protected:
  CompareCommandTest() { train_well(run_dir("r")); }

  [[nodiscard]] std::string checkpoint(int step) const {
    return (run_dir("r") / "checkpoints" / ("step-" + std::to_string(step))).string();
  }
  [[nodiscard]] Outcome compare(const std::string& a, const std::string& b,
                                const Arguments& more = {}) const {
    Arguments arguments = {"compare", a, b, "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }
};

TEST_F(CompareCommandTest, ARunIsItself) {
  const Outcome outcome = compare(run_dir("r").string(), checkpoint(20));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("no module differs by more than 0.0001"));
}

TEST_F(CompareCommandTest, TwoStepsDifferAndTheFirstModuleIsNamed) {
  const Outcome outcome =
      compare(checkpoint(10), checkpoint(20), {"--weights-a", "raw", "--weights-b", "raw"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("first above 0.0001: x_embedder"));
}

TEST_F(CompareCommandTest, PrecisionsAgreeToTheirRounding) {
  const Outcome outcome =
      compare(checkpoint(20), checkpoint(20), {"--precision-b", "bf16", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  std::istringstream lines(outcome.out);
  int64_t num_modules = 0;
  double largest = 0.0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    num_modules += json.at("kind") == "module" ? 1 : 0;
    largest = std::max(largest, json.at("relative_error").get<double>());
  }
  EXPECT_GT(num_modules, 20);
  EXPECT_GT(largest, 0.0);
}

TEST_F(CompareCommandTest, WhatCannotBeComparedIsSaid) {
  const Outcome outcome = compare(checkpoint(10), folder() / "none");
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("does not exist"));
}

}  // namespace compare_test
}  // namespace kinora::apps
