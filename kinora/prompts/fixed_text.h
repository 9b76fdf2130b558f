#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kinora::prompts {

/// Stands for what cannot be read.
inline constexpr uint32_t kReplacementCharacter = 0xFFFD;

/// A code point as UTF-8.
[[nodiscard]] std::string utf8(uint32_t code_point);

/// `text` with U+FFFD in the place of each byte that is not well-formed UTF-8.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// What browsers and ftfy take a control from 0x80 to 0x9F for: the character of Windows-1252, or
/// itself where that has none.
[[nodiscard]] uint32_t windows_1252(uint32_t control);

/// In lower case as Python's str.lower, but that a sigma at the end of a word is as any other.
[[nodiscard]] std::string lower_case(std::string_view text);

/// Without white space of any script at both ends, as Python's str.strip.
[[nodiscard]] std::string strip(std::string_view text);

/// Percent-encoding undone, and "+" as a space: Python's urllib.parse.unquote_plus.
[[nodiscard]] std::string unquote_plus(std::string_view text);

/// What ftfy.fix_text does (Speer 2019), but for the repair of text that was decoded in a wrong
/// encoding (mojibake), which is left as it is: terminal escapes and control characters go,
/// ligatures come apart, characters of full and half width become usual ones, quotes straight, line
/// ends "\n", and the whole NFC. text: well-formed UTF-8.
[[nodiscard]] std::string fixed_text(std::string_view text);

}  // namespace kinora::prompts
