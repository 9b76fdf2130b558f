#include "kinora/tokenizers/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace kinora::tokenizers {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Which second byte makes a sequence well-formed, and how many bytes there are (Unicode 15, table
/// 3-7); size 0: no sequence begins with this byte.
struct SequenceRule {
  size_t size = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

SequenceRule rule_of(unsigned char first) {
  if (first < 0x80) {
    return {1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {};
  }
  if (first < 0xE0) {
    return {2};
  }
  if (first < 0xF0) {
    return {3, static_cast<unsigned char>(first == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(first == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<unsigned char>(first == 0xF0 ? 0x90 : 0x80),
          static_cast<unsigned char>(first == 0xF4 ? 0x8F : 0xBF)};
}

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

}  // namespace

std::string replace_broken(std::string_view text) {
  std::string whole;
  whole.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const SequenceRule rule = rule_of(static_cast<unsigned char>(text[at]));
    size_t size = 1;
    while (size < rule.size && at + size < text.size()) {
      const auto byte = static_cast<unsigned char>(text[at + size]);
      const bool fits = size == 1 ? byte >= rule.low && byte <= rule.high : (byte & 0xC0) == 0x80;
      if (!fits) {
        break;
      }
      ++size;
    }
    whole += size == rule.size ? text.substr(at, size) : kReplacementCharacter;
    at += size;
  }
  return whole;
}

void append_utf8(std::string& text, char32_t code_point) {
  unsigned char bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
    --at;
  }
  return at;
}

bool is_whitespace(char32_t code_point) {
  if (code_point < 0x80) {
    return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  }
  return code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

bool is_numeric(char32_t code_point) {
  const auto category = category_of(code_point);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) {
    return code_point > ' ' && code_point < 0x7F && !(code_point >= '0' && code_point <= '9') &&
           !((code_point | 0x20) >= 'a' && (code_point | 0x20) <= 'z');
  }
  const auto category = category_of(code_point);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_control(char32_t code_point) {
  const auto category = category_of(code_point);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

bool is_nonspacing_mark(char32_t code_point) {
  return category_of(code_point) == UTF8PROC_CATEGORY_MN;
}

bool is_word_character(char32_t code_point) {
  const auto category = category_of(code_point);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || code_point == 0x200C || code_point == 0x200D;
}

}  // namespace kinora::tokenizers
