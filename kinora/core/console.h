#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace kinora {

/// Lines of text and, on a terminal, one status line below them that is redrawn in place. Log lines
/// and progress bars meet here, so that neither damages the other. Thread safe.
class Console {
 public:
  /// `write` receives whole pieces of output; `columns` tells the terminal's width each time, 0 if
  /// the output is no terminal that can redraw a line.
  Console(std::function<void(std::string_view)> write, std::function<int()> columns);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// The process's standard error. It can redraw if it is a terminal, TERM is not "dumb" and
  /// NO_COLOR is not set.
  [[nodiscard]] static Console& standard_error();

  /// Columns of the terminal; 0: print plain lines, a status would be lost.
  [[nodiscard]] int columns() const { return columns_(); }

  /// Prints a line above the status.
  void print_line(std::string_view line);

  /// Replaces the status line, cut to the terminal's width; an empty text removes it. Nothing
  /// happens where there is no terminal.
  void set_status(std::string text);

 private:
  [[nodiscard]] std::string drawn_status() const;

  const std::function<void(std::string_view)> write_;
  const std::function<int()> columns_;
  std::mutex mutex_;
  std::string status_;
};

}  // namespace kinora
