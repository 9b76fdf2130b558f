#pragma once

#include <sstream>
#include <string>
#include <string_view>

/// Messages for people, on standard error: "12:03:05 [train] step 20 ..." and, above info, with the
/// level: "12:03:05 warning: [data] ...". Thread safe; a progress bar stays whole. Parts are
/// streamed one after the other, and begin with the component in brackets.
namespace kinora {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

/// Whether messages of `level` are printed: from info up, or from the level that the environment
/// variable KINORA_LOG names (debug, info, warning, error), which is for debugging.
[[nodiscard]] bool log_enabled(LogLevel level);

/// Prints one message, whose further lines are indented, if its level is enabled.
void log_message(LogLevel level, std::string_view message);

template <typename... Parts>
void log_parts(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) {
    std::ostringstream message;
    (message << ... << parts);
    log_message(level, message.str());
  }
}

template <typename... Parts>
void log_debug(const Parts&... parts) {
  log_parts(LogLevel::kDebug, parts...);
}

template <typename... Parts>
void log_info(const Parts&... parts) {
  log_parts(LogLevel::kInfo, parts...);
}

template <typename... Parts>
void log_warn(const Parts&... parts) {
  log_parts(LogLevel::kWarn, parts...);
}

template <typename... Parts>
void log_error(const Parts&... parts) {
  log_parts(LogLevel::kError, parts...);
}

}  // namespace kinora
