#pragma once

#include <string>

#include "kinora/core/error.h"

namespace kinora::apps {

/// The exit code of a wrong command line or configuration; docs/configuration.md lists all.
inline constexpr int kExitUsage = 2;

/// That of a rank which wants all of them to start again (train::StartAgain).
inline constexpr int kExitStartAgain = 11;

/// That of a program which had not enough memory, whoever noticed it.
inline constexpr int kExitOutOfMemory = 8;

/// That of a program which such an error ends.
[[nodiscard]] int exit_code(ErrorKind kind);

/// What the program says then, after its name: "config error: [train] a recipe is needed".
[[nodiscard]] std::string error_text(const Error& error);

}  // namespace kinora::apps
