#pragma once

#include <string>

namespace kinora::apps {

/// What an exception becomes at the end of the program.
struct ErrorReport {
  std::string text;  ///< "config error: ..."
  int exit_code = 1;
};

/// Of the exception that is being handled: for a catch block.
[[nodiscard]] ErrorReport report_current_error();

}  // namespace kinora::apps
