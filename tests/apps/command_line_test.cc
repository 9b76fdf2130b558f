#include "apps/kinora/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace kinora::apps {
namespace command_line_test {

using testing::ElementsAre;
using testing::IsEmpty;

/// The captions of `kinora sample --run RUN` with these words behind.
std::vector<std::string> captions_of(const std::vector<std::string>& words) {
  std::vector<const char*> arguments = {"kinora", "sample", "--run", "run"};
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  const CommandLine line = read_command_line(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_TRUE(line.command.has_value());
  return line.command ? std::get<SampleArguments>(*line.command).request.captions
                      : std::vector<std::string>();
}

TEST(CommandLineTest, CaptionsAreTextAsItStands) {
  EXPECT_THAT(captions_of({"--prompt", "[a cat]"}), ElementsAre("[a cat]"));
  EXPECT_THAT(captions_of({"--prompt", "[a cat, [red]]", "--seed", "1"}),
              ElementsAre("[a cat, [red]]"));
  EXPECT_THAT(captions_of({"--prompt=[a, b]"}), ElementsAre("[a, b]"));
  EXPECT_THAT(captions_of({"--captions", "a, b", "[c,d]", "", "--seed", "1"}),
              ElementsAre("a, b", "[c,d]", ""));
  EXPECT_THAT(captions_of({"--prompt", "a", "--seed", "1", "--prompt", "[b]"}),
              ElementsAre("a", "[b]"));
  EXPECT_THAT(captions_of({"--seed", "1"}), IsEmpty());
}

}  // namespace command_line_test
}  // namespace kinora::apps
