#include "kinora/core/log.h"

#include <array>
#include <cstdlib>
#include <ctime>

#include "kinora/core/console.h"

namespace kinora {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};

LogLevel level_from_environment() {
  const char* name = std::getenv("KINORA_LOG");
  for (size_t i = 0; name != nullptr && i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      return static_cast<LogLevel>(i);
    }
  }
  return LogLevel::kInfo;
}

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 16> text;
  const size_t size = std::strftime(text.data(), text.size(), "%H:%M:%S ", &local);
  return {text.data(), size};
}

}  // namespace

bool log_enabled(LogLevel level) {
  static const LogLevel kLowest = level_from_environment();
  return level >= kLowest;
}

void log_message(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) {
    return;
  }
  std::string line = time_of_day();
  const size_t indent = line.size();
  if (level != LogLevel::kInfo) {
    line.append(kNames[static_cast<size_t>(level)]).append(": ");
  }
  for (const char c : message) {
    line += c;
    if (c == '\n') {
      line.append(indent, ' ');
    }
  }
  Console::standard_error().print_line(line);
}

}  // namespace kinora
