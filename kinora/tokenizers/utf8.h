#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Text as code points. Everything behind replace_broken() may take it that its text is UTF-8.
namespace kinora::tokenizers {

/// `text` with every broken sequence of bytes as one U+FFFD, as `bytes.decode(errors="replace")` of
/// Python does: "a\xE2\x82z" is "a\uFFFDz" (the longest start of a character is one sequence),
/// "\xF0\x80" is "\uFFFD\uFFFD".
[[nodiscard]] std::string replace_broken(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  size_t size = 1;  ///< bytes
};

/// The character that begins at byte `at` of well-formed UTF-8, `at` < text.size().
[[nodiscard]] inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xE0) {
    return {(first & 0x1F) << 6 | (byte(1) & 0x3FU), 2};
  }
  if (first < 0xF0) {
    return {(first & 0x0F) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU), 3};
  }
  return {
      (first & 0x07) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU),
      4};
}

void append_utf8(std::string& text, char32_t code_point);

/// Where the last character of a text that is not empty begins.
[[nodiscard]] size_t last_character(std::string_view text);

/// Unicode's White_Space, as of char::is_whitespace in Rust.
[[nodiscard]] bool is_whitespace(char32_t code_point);

/// General categories Nd, Nl and No.
[[nodiscard]] bool is_numeric(char32_t code_point);

/// General categories P*, and the symbols of ASCII.
[[nodiscard]] bool is_punctuation(char32_t code_point);

/// General categories Cc, Cf and Co.
[[nodiscard]] bool is_control(char32_t code_point);

/// General category Mn.
[[nodiscard]] bool is_nonspacing_mark(char32_t code_point);

/// What \w means to Rust's regex: letters, marks, decimal digits, connectors and joiners.
[[nodiscard]] bool is_word_character(char32_t code_point);

}  // namespace kinora::tokenizers
