#include "kinora/prompts/fixed_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/regex.h"
#include "kinora/prompts/html_text.h"

namespace kinora::prompts {
namespace {

struct Decoded {
  uint32_t code_point;
  size_t size;
  bool is_valid;
};

Decoded first_of(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  return size > 0 ? Decoded{static_cast<uint32_t>(code_point), static_cast<size_t>(size), true}
                  : Decoded{kReplacementCharacter, 1, false};
}

/// Each code point of `text` as `change` has it.
template <typename Change>
std::string changed(std::string_view text, const Change& change) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const Decoded now = first_of(text.substr(at));
    result += change(now.code_point);
    at += now.size;
  }
  return result;
}

/// Python's str.isspace.
bool is_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string normalised(std::string_view text, utf8proc_option_t options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  KINORA_CHECK(size >= 0, kConfig, "[prompt] a text cannot be normalised: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

/// From 0x80 on.
constexpr std::array<uint16_t, 32> kWindows1252 = {
    0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6,  0x2030, 0x160,
    0x2039, 0x152,  0x8D,   0x17D,  0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

/// Two or three letters as one character, for the sake of old fonts and encodings.
constexpr std::array<std::pair<uint32_t, const char*>, 19> kLigatures = {{
    {0x132, "IJ"},  {0x133, "ij"},        {0x149, "\xCA\xBCn"}, {0x1F1, "DZ"},        {0x1F2, "Dz"},
    {0x1F3, "dz"},  {0x1C4, "D\xC5\xBD"}, {0x1C5, "D\xC5\xBE"}, {0x1C6, "d\xC5\xBE"}, {0x1C7, "LJ"},
    {0x1C8, "Lj"},  {0x1C9, "lj"},        {0x1CA, "NJ"},        {0x1CB, "Nj"},        {0x1CC, "nj"},
    {0xFB00, "ff"}, {0xFB01, "fi"},       {0xFB02, "fl"},       {0xFB03, "ffi"},
}};

bool is_control(uint32_t c) {
  return c <= 0x8 || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
         (c >= 0x206A && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

std::string fixed_character(uint32_t c) {
  const auto* const ligature =
      std::ranges::find(kLigatures, c, &decltype(kLigatures)::value_type::first);
  if (ligature != kLigatures.end()) {
    return ligature->second;
  }
  if (c == 0xFB04 || c == 0xFB05 || c == 0xFB06) {
    return c == 0xFB04 ? "ffl" : c == 0xFB05 ? "\xC5\xBFt" : "st";
  }
  if (c == 0x3000 || (c >= 0xFF01 && c <= 0xFFEF)) {
    return normalised(utf8(c), static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT |
                                                              UTF8PROC_STABLE));
  }
  if ((c >= 0x2018 && c <= 0x201B) || c == 0x2BC) {
    return "'";
  }
  if (c >= 0x201C && c <= 0x201F) {
    return "\"";
  }
  if (c >= 0x80 && c <= 0x9F) {
    const uint32_t meant = windows_1252(c);
    return meant == c ? utf8(c) : fixed_character(meant);
  }
  if (c == 0x2028 || c == 0x2029) {
    return "\n";
  }
  return is_control(c) ? "" : utf8(c);
}

}  // namespace

uint32_t windows_1252(uint32_t control) {
  return kWindows1252[control - 0x80];
}

std::string utf8(uint32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes = {};
  const utf8proc_ssize_t size =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(size)};
}

std::string valid_utf8(std::string_view text) {
  return changed(text, [](uint32_t c) { return utf8(c); });
}

std::string lower_case(std::string_view text) {
  constexpr uint32_t kDottedI = 0x130;  // becomes two code points
  return changed(text, [](uint32_t c) {
    return c == kDottedI
               ? "i\xCC\x87"
               : utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  });
}

std::string strip(std::string_view text) {
  while (!text.empty()) {
    const Decoded first = first_of(text);
    if (!first.is_valid || !is_space(first.code_point)) {
      break;
    }
    text.remove_prefix(first.size);
  }
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
      --begin;
    }
    const Decoded last = first_of(text.substr(begin));
    if (!last.is_valid || !is_space(last.code_point)) {
      break;
    }
    text = text.substr(0, begin);
  }
  return std::string(text);
}

std::string unquote_plus(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      result += static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2]));
      i += 2;
    } else {
      result += text[i] == '+' ? ' ' : text[i];
    }
  }
  return valid_utf8(result);
}

std::string fixed_text(std::string_view text) {
  constexpr auto kDialect = Regex::Dialect::kPython;
  static const Regex kTerminalEscape("\x1b\\[((?:\\d|;)*)([a-zA-Z])", kDialect, "[prompt]");
  static const Regex kLineEnd("\r\n?", kDialect, "[prompt]");
  // References of HTML are undone where there are no tags.
  const std::string plain =
      text.find('<') == std::string_view::npos ? unescape_html(text) : std::string(text);
  const std::string lines = kLineEnd.replaced(kTerminalEscape.replaced(plain, ""), "\n");
  return normalised(changed(lines, fixed_character),
                    static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
}

}  // namespace kinora::prompts
