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

/// What a command that does not train can do about memory that is too little, from now on part of
/// its reports.
void set_memory_hint(std::string hint);

}  // namespace kinora::apps
