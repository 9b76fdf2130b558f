#pragma once

#include "apps/kinora/options/command.h"

namespace kinora::apps {

struct CommandLine {
  Chosen command;     ///< none: the line has been answered, by help or what is wrong with it
  int exit_code = 0;  ///< then
};

/// Reads the arguments of `kinora`. Prints what they ask of it alone, --help and --version, and
/// what is wrong with them.
[[nodiscard]] CommandLine read_command_line(int argc, const char* const* argv);

}  // namespace kinora::apps
