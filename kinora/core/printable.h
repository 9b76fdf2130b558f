#pragma once

#include <cstddef>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

/// Names of files of others lie in what a program says, and must not steer a terminal.
namespace kinora {

/// `text` as a terminal may get it: control characters but for line feeds and tabs, and bytes that
/// are not UTF-8, as "\x1b".
[[nodiscard]] std::string printable(std::string_view text);

/// The same on one line: line feeds and tabs as "\x0a", too.
[[nodiscard]] std::string printable_line(std::string_view text);

/// While it lives, all that is written to `stream` is printable(). Lines are passed on whole.
class PrintableStream : public std::streambuf {
 public:
  explicit PrintableStream(std::ostream& stream);
  ~PrintableStream() override;
  PrintableStream(const PrintableStream&) = delete;
  PrintableStream& operator=(const PrintableStream&) = delete;

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  /// The first `size` bytes of what waits; false: they could not be written.
  bool pass_on(size_t size);

  std::ostream& stream_;
  std::streambuf* const target_;
  std::string waiting_;
};

}  // namespace kinora
