#include "kinora/core/printable.h"

#include <array>
#include <cstdio>
#include <iterator>

#include "kinora/core/text.h"

namespace kinora {
namespace {

// The bytes of the character that `text` begins with; 1 where it is not well formed.
size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t length = lead < 0xc0 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  return length <= text.size() && is_utf8(text.substr(0, length)) ? length : 1;
}

// Whether a terminal shows the character rather than obeying it.
bool is_shown(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) {
    return byte(0) >= 0x20 && byte(0) < 0x7f;
  }
  return byte(0) != 0xc2 || byte(1) >= 0xa0;  // U+0080 to U+009F are control characters
}

std::string escape(std::string_view text, std::string_view allowed) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::string_view one = text.substr(0, character_length(text));
    text.remove_prefix(one.size());
    if (is_shown(one) || allowed.find(one) != std::string_view::npos) {
      result += one;
      continue;
    }
    for (const char c : one) {
      std::array<char, 8> code;
      std::snprintf(code.data(), code.size(), "\\x%02x", static_cast<unsigned char>(c));
      result += code.data();
    }
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) {
  return escape(text, "\n\t");
}

std::string printable_line(std::string_view text) {
  return escape(text, "");
}

PrintableStream::PrintableStream(std::ostream& stream)
    : stream_(stream), target_(stream.rdbuf(this)) {}

PrintableStream::~PrintableStream() {
  PrintableStream::sync();
  stream_.rdbuf(target_);
}

bool PrintableStream::pass_on(size_t size) {
  const std::string text = printable(std::string_view(waiting_).substr(0, size));
  waiting_.erase(0, size);
  return target_->sputn(text.data(), std::ssize(text)) == std::ssize(text);
}

std::streamsize PrintableStream::xsputn(const char* text, std::streamsize size) {
  waiting_.append(text, static_cast<size_t>(size));
  const size_t end = waiting_.rfind('\n');
  return end == std::string::npos || pass_on(end + 1) ? size : 0;
}

PrintableStream::int_type PrintableStream::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) {
    return traits_type::not_eof(c);
  }
  const char one = traits_type::to_char_type(c);
  return xsputn(&one, 1) == 1 ? c : traits_type::eof();
}

int PrintableStream::sync() {
  return pass_on(waiting_.size()) ? target_->pubsync() : -1;
}

}  // namespace kinora
