#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

/// What a launcher does with the output of several processes: joins it line by line.
namespace kinora {

/// A file descriptor of this process, not owned, that several LineRelays write to.
class OutputSink {
 public:
  explicit OutputSink(int descriptor);

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }

  /// Writes all bytes as they are. Once the reader has gone, output is dropped silently: the
  /// processes shall go on without it.
  void write(std::string_view bytes);

  /// Makes sure that what comes next starts a line: erases a terminal's unfinished line, which is a
  /// progress bar that will be drawn again, and ends that of a file.
  void start_line();

 private:
  int descriptor_;
  bool is_terminal_;
  bool is_mid_line_ = false;
  bool is_open_ = true;
};

/// One stream of one process on its way to a sink.
class LineRelay {
 public:
  /// Every line gets `prefix`. Without one, bytes pass unchanged: on a terminal at once, since they
  /// may draw a progress bar; elsewhere, as with a prefix, line by line, so that lines of several
  /// processes do not mix. A line above 1 MiB leaves in pieces. `sink` must live as long.
  LineRelay(std::string prefix, OutputSink* sink);

  /// Takes the next bytes.
  void feed(std::string_view bytes);

  /// Passes on what is left, a line without its end. Call once, after the last bytes.
  void finish();

  /// The newest lines, at most 20 and of each at most 1000 bytes, joined by line feeds; without
  /// what a carriage return went over, terminal control sequences and empty lines.
  [[nodiscard]] std::string last_lines() const;

 private:
  void emit(std::string_view line);
  void remember(std::string_view bytes);

  std::string prefix_;
  OutputSink* sink_;
  std::string held_;        // the line that has not been passed on
  std::string unfinished_;  // the line to remember, at most its beginning
  std::deque<std::string> last_lines_;
};

}  // namespace kinora
