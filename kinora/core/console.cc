#include "kinora/core/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "kinora/core/printable.h"

namespace kinora {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

void write_to_standard_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(STDERR_FILENO, text.data(), text.size());
    if (size <= 0) {
      return;  // nobody listens any more, and there is nowhere to say so
    }
    text.remove_prefix(static_cast<size_t>(size));
  }
}

bool can_redraw() {
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb" &&
         (no_color == nullptr || *no_color == '\0');
}

int terminal_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

Console::Console(std::function<void(std::string_view)> write, std::function<int()> columns)
    : write_(std::move(write)), columns_(std::move(columns)) {}

Console& Console::standard_error() {
  static const bool kRedraws = can_redraw();
  static Console console(write_to_standard_error, [] { return kRedraws ? terminal_columns() : 0; });
  return console;
}

void Console::print_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  std::string text;
  if (!status_.empty()) {
    text += kEraseLine;
  }
  text.append(printable(line)).append("\n").append(drawn_status());
  write_(text);
}

void Console::set_status(std::string text) {
  text = printable(text);
  const std::lock_guard lock(mutex_);
  if (columns() == 0 || text == status_) {
    return;
  }
  status_ = std::move(text);
  write_(std::string(kEraseLine) + drawn_status());
}

std::string Console::drawn_status() const {
  if (status_.empty()) {
    return {};
  }
  // One column stays free: a full line makes some terminals wrap.
  const int room = columns() - 1;
  return status_.substr(0, room > 0 ? static_cast<size_t>(room) : 0);
}

}  // namespace kinora
