#pragma once

#include <string>

namespace kinora::apps {

/// The exit code of a wrong command line or configuration; docs/configuration.md lists all.
inline constexpr int kExitUsage = 2;

/// What an exception becomes at the end of the program.
struct ErrorReport {
  std::string text;  ///< "config error: ..."
  int exit_code = 1;
};

/// Of the exception that is being handled: for a catch block.
[[nodiscard]] ErrorReport report_current_error();

}  // namespace kinora::apps
