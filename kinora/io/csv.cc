#include "kinora/io/csv.h"

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr char kQuote = '"';
constexpr char kComma = ',';

}  // namespace

CsvReader::CsvReader(std::string_view text, std::string name)
    : text_(text), name_(std::move(name)) {
  if (text_.starts_with(kByteOrderMark)) {
    position_ = kByteOrderMark.size();
  }
}

bool CsvReader::at_row_end() const {
  return position_ == text_.size() || text_[position_] == '\n' || text_[position_] == '\r';
}

// CR LF is one line.
void CsvReader::skip_line_ends() {
  while (position_ < text_.size() && at_row_end()) {
    position_ += text_.substr(position_, 2) == "\r\n" ? 2 : 1;
    ++line_;
  }
}

void CsvReader::read_quoted(std::string& field) {
  const int64_t first_line = line_;
  ++position_;
  for (;;) {
    const size_t end = text_.find(kQuote, position_);
    KINORA_CHECK(end != std::string_view::npos, kIo, "[csv] ", name_, ":", first_line,
                 ": a quoted field must end with a quote, got the end of the file. Hint: a quote "
                 "inside a quoted field is written twice");
    const std::string_view part = text_.substr(position_, end - position_);
    line_ += std::count(part.begin(), part.end(), '\n');
    field += part;
    position_ = end + 1;
    if (position_ == text_.size() || text_[position_] != kQuote) {
      break;
    }
    field += kQuote;
    ++position_;
  }
  KINORA_CHECK(at_row_end() || text_[position_] == kComma, kIo, "[csv] ", name_, ":", line_,
               ": after a closing quote must come a comma or the end of the line, got '",
               text_[position_], "'. Hint: a quote inside a quoted field is written twice");
}

void CsvReader::read_plain(std::string& field) {
  const size_t end = std::min(text_.find_first_of(",\r\n", position_), text_.size());
  field = text_.substr(position_, end - position_);
  position_ = end;
}

bool CsvReader::next(std::vector<std::string>& fields) {
  skip_line_ends();
  if (position_ == text_.size()) {
    return false;
  }
  row_line_ = line_;
  size_t count = 0;
  for (;;) {
    if (fields.size() == count) {
      fields.emplace_back();
    }
    std::string& field = fields[count++];
    field.clear();
    if (position_ < text_.size() && text_[position_] == kQuote) {
      read_quoted(field);
    } else {
      read_plain(field);
    }
    KINORA_CHECK(field.find('\0') == std::string::npos, kIo, "[csv] ", name_, ":", row_line_,
                 ": must be text, got a zero byte. Hint: save it as CSV in UTF-8");
    if (at_row_end()) {
      break;
    }
    ++position_;  // the comma
  }
  fields.resize(count);
  return true;
}

}  // namespace kinora::io
