// A run of an older version: its recipe, checkpoint and weights are read as they were meant.
// tests/apps/data/run-0.1.0.tar.gz is what commit ecbc1d5 wrote: recipe.yaml, a run of it to step
// 2, model.safetensors converted from that, and the log of a run to step 4.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace old_run_test {

using testing::HasSubstr;

class OldRunTest : public RunTest {
 protected:
  OldRunTest() {
    const std::string archive = source_path("tests/apps/data/run-0.1.0.tar.gz").string();
    const std::string command = "tar -xzf '" + archive + "' -C '" + folder().string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  [[nodiscard]] Outcome go_on(const Arguments& more) const {
    Arguments arguments = {"train", (folder() / "recipe.yaml").string(),
                           "run.dir=" + (folder() / "run").string(), "--resume", "auto"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }
};

TEST_F(OldRunTest, GoesOnAsItWouldHave) {
  const Outcome outcome = go_on({"train.steps=4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream text(read_text(folder() / "whole-log.jsonl"));
  const std::vector<LogLine> log = read_log(folder() / "run");
  ASSERT_EQ(log.size(), 4U);
  for (const LogLine& line : log) {
    std::string whole;
    ASSERT_TRUE(std::getline(text, whole));
    // Another processor rounds in another way.
    EXPECT_NEAR(line.at("loss").get<double>(),
                nlohmann::json::parse(whole).at("loss").get<double>(), 1e-5);
  }
}

TEST_F(OldRunTest, HasTheWeightsThatItHad) {
  const std::string converted = (folder() / "again.safetensors").string();
  const Outcome convert = run_kinora(
      {"convert", (folder() / "run/checkpoints/step-2").string(), "--to", converted}, folder());
  ASSERT_EQ(convert.exit_code, 0) << convert.err;
  const Outcome compare =
      run_kinora({"compare", (folder() / "model.safetensors").string(), converted}, folder());
  EXPECT_EQ(compare.exit_code, 0) << compare.out << compare.err;
  const Outcome sample = run_kinora({"sample", "--run", (folder() / "run").string(), "--count", "2",
                                     "--out", (folder() / "samples").string()},
                                    folder());
  EXPECT_EQ(sample.exit_code, 0) << sample.err;
}

TEST_F(OldRunTest, ARetiredKeyWithAnotherValueIsRefusedByItsName) {
  const Outcome outcome = go_on({"data.text_length=17"});
  EXPECT_EQ(outcome.exit_code, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("data.text_length is no more"));
}

}  // namespace old_run_test
}  // namespace kinora::apps
