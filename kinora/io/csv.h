#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::io {

/// Reads the rows of a CSV text (RFC 4180): fields between commas, quoted where they hold commas,
/// line ends or quotes, which are doubled there. Rows end with LF, CR LF or CR; a byte order mark
/// of UTF-8 is skipped, and so are empty lines. Spaces belong to fields.
class CsvReader {
 public:
  /// `text` must outlive the reader; `name` is what messages call it.
  CsvReader(std::string_view text, std::string name);

  /// Fills `fields` with the next row, whose strings are used again; false at the end. Error (kIo)
  /// with the line: a quote that never ends, letters behind a closing quote, a zero byte.
  [[nodiscard]] bool next(std::vector<std::string>& fields);

  /// The line, from 1, on which the last row began; rows may have several.
  [[nodiscard]] int64_t line() const { return row_line_; }

 private:
  void skip_line_ends();
  void read_quoted(std::string& field);
  void read_plain(std::string& field);
  [[nodiscard]] bool at_row_end() const;

  std::string_view text_;
  std::string name_;
  size_t position_ = 0;
  int64_t line_ = 1;
  int64_t row_line_ = 0;
};

}  // namespace kinora::io
