#include "kinora/core/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <regex>

namespace kinora {
namespace log_test {

/// What `action` prints on standard error, in another process with KINORA_LOG set so.
std::string logged(const char* level, const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  const pid_t pid = ::fork();
  if (pid == 0) {
    level != nullptr ? ::setenv("KINORA_LOG", level, 1) : ::unsetenv("KINORA_LOG");
    action();
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  return testing::internal::GetCapturedStderr();
}

void all_levels() {
  log_debug("[x] d");
  log_info("[x] i ", 1, " of ", 2.5);
  log_warn("[x] w");
  log_error("[x] e");
}

TEST(LogTest, LinesHaveTimeLevelAndParts) {
  const std::string text = logged(nullptr, all_levels);
  const std::string time = "[0-2][0-9]:[0-5][0-9]:[0-6][0-9] ";
  EXPECT_TRUE(
      std::regex_match(text, std::regex(time + R"(\[x\] i 1 of 2.5\n)" + time +
                                        R"(warning: \[x\] w\n)" + time + R"(error: \[x\] e\n)")))
      << text;
}

TEST(LogTest, EnvironmentChoosesTheLevel) {
  EXPECT_NE(logged("debug", all_levels).find("debug: [x] d\n"), std::string::npos);
  const std::string quiet = logged("error", all_levels);
  EXPECT_EQ(quiet.find("[x] w"), std::string::npos);
  EXPECT_NE(quiet.find("[x] e"), std::string::npos);
}

TEST(LogTest, FurtherLinesAreIndented) {
  const std::string text = logged(nullptr, [] { log_info("one\ntwo"); });
  EXPECT_NE(text.find(" one\n         two\n"), std::string::npos) << text;
}

}  // namespace log_test
}  // namespace kinora
