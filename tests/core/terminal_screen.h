#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/console.h"

namespace kinora {

using Lines = std::vector<std::string>;

/// A Console on a make-believe terminal that understands line feed, carriage return and "erase to
/// the end of the line"; 0 columns: a file.
class TerminalScreen {
 public:
  explicit TerminalScreen(int columns)
      : console_([this](std::string_view text) { raw_ += text; }, [columns] { return columns; }) {}

  Console& console() { return console_; }
  [[nodiscard]] const std::string& raw() const { return raw_; }

  /// What a reader sees.
  [[nodiscard]] Lines lines() const {
    Lines lines = {""};
    size_t column = 0;
    for (size_t i = 0; i < raw_.size(); ++i) {
      if (raw_[i] == '\n') {
        lines.emplace_back();
        column = 0;
      } else if (raw_[i] == '\r') {
        column = 0;
      } else if (raw_.compare(i, 3, "\x1b[K") == 0) {
        lines.back().resize(column);
        i += 2;
      } else {
        lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
        lines.back()[column] = raw_[i];
        ++column;
      }
    }
    return lines;
  }

 private:
  std::string raw_;
  Console console_;
};

}  // namespace kinora
