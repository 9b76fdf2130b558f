#include "kinora/core/line_relay.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kinora {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr size_t kLongestLine = size_t{1} << 20;
constexpr size_t kMaxLastLines = 20;
constexpr size_t kMaxLastLineSize = 1000;

/// What is seen of a line: the text after the last carriage return that text follows, without
/// control sequences (ECMA-48: ESC [ parameters, up to a byte of '@' to '~').
std::string visible(std::string_view line) {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  line.remove_prefix(line.rfind('\r') + 1);  // npos + 1 = 0
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) {
        ++i;
      }
    } else {
      text += line[i];
    }
  }
  return text;
}

}  // namespace

OutputSink::OutputSink(int descriptor)
    : descriptor_(descriptor), is_terminal_(::isatty(descriptor) == 1) {}

void OutputSink::write(std::string_view bytes) {
  if (!bytes.empty()) {
    is_mid_line_ = bytes.back() != '\n';
  }
  while (is_open_ && !bytes.empty()) {
    const ssize_t size = ::write(descriptor_, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {  // whoever shares it made it non-blocking
      pollfd ready{descriptor_, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      is_open_ = false;
    }
  }
}

void OutputSink::start_line() {
  if (is_mid_line_) {
    write(is_terminal_ ? kEraseLine : "\n");
    is_mid_line_ = false;
  }
}

LineRelay::LineRelay(std::string prefix, OutputSink* sink)
    : prefix_(std::move(prefix)), sink_(sink) {}

void LineRelay::feed(std::string_view bytes) {
  remember(bytes);
  if (prefix_.empty() && sink_->is_terminal()) {
    sink_->write(bytes);
    return;
  }
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t size = end == std::string_view::npos ? bytes.size() : end + 1;
    held_.append(bytes.substr(0, size));
    bytes.remove_prefix(size);
    if (end != std::string_view::npos || held_.size() >= kLongestLine) {
      emit(held_);
      held_.clear();
    }
  }
}

void LineRelay::finish() {
  if (!unfinished_.empty()) {
    remember("\n");
  }
  if (!held_.empty()) {
    emit(held_);
    held_.clear();
  }
}

std::string LineRelay::last_lines() const {
  std::string text;
  for (const std::string& line : last_lines_) {
    text.append(text.empty() ? "" : "\n").append(line);
  }
  return text;
}

void LineRelay::emit(std::string_view line) {
  if (prefix_.empty()) {
    sink_->write(line);
    return;
  }
  std::string text = prefix_;
  text.append(line);
  if (text.back() != '\n') {
    text += '\n';
  }
  sink_->start_line();
  sink_->write(text);
}

void LineRelay::remember(std::string_view bytes) {
  // A progress bar may draw for hours without a line feed: only what the last \r left matters, and
  // of a long line its beginning.
  for (const char c : bytes) {
    if (c == '\n') {
      std::string line = visible(unfinished_);
      unfinished_.clear();
      if (line.find_first_not_of(" \t") != std::string::npos) {
        last_lines_.push_back(std::move(line));
        if (last_lines_.size() > kMaxLastLines) {
          last_lines_.pop_front();
        }
      }
    } else if (unfinished_.size() < kMaxLastLineSize) {
      unfinished_ += c;
    } else if (c == '\r') {
      unfinished_ = c;
    }
  }
}

}  // namespace kinora
