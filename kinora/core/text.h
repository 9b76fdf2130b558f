#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Text for people: quantities in readable units, and what finds the word that was meant.
namespace kinora {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Bytes of a file as the text that they are.
[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// `bytes` with a binary unit and two to four significant digits: "512 B", "1.5 GiB".
[[nodiscard]] std::string human_bytes(int64_t bytes);

/// A length of time: "0.25 s", "42 s", "3m 05s", "1h 02m", "2d 03h"; "?" if negative or not finite.
[[nodiscard]] std::string human_duration(double seconds);

/// `count` with a decimal unit and at most four significant digits: "950", "12.3k", "675.1M",
/// "1.2T".
[[nodiscard]] std::string human_count(int64_t count);

/// A rate with three significant digits, without exponent: "0.0312", "4.27", "318".
[[nodiscard]] std::string human_rate(double per_second);

/// `value` with at most `digits` significant digits and an exponent where it is short so: "0.0123",
/// "1.5e-07".
[[nodiscard]] std::string human_number(double value, int digits);

/// The pieces between separators; a text without one is one piece, so an empty text is one empty
/// piece.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

/// Without the spaces, tabs and line ends at both sides.
[[nodiscard]] std::string_view trim(std::string_view text);

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, no part
/// edited twice (optimal string alignment: Damerau 1964, Levenshtein 1966). Bytes, not code points.
[[nodiscard]] int64_t edit_distance(std::string_view a, std::string_view b);

/// Breaks `text` at spaces into lines of at most `width` bytes (longer words stay whole), each
/// after `indent` spaces, which count; every line ends with a line feed.
[[nodiscard]] std::string wrap(std::string_view text, size_t width, size_t indent);

/// Whether `text` is well-formed UTF-8 (RFC 3629: no overlong forms, surrogates, or > U+10FFFF).
[[nodiscard]] bool is_utf8(std::string_view text);

/// `text` between double quotes, on one line: quotes, backslashes and control characters as escapes
/// that YAML understands; well-formed UTF-8 stays as it is.
[[nodiscard]] std::string quote(std::string_view text);

/// The first `most` names: "a, b", or "a, b, and 3 more"; empty for none.
[[nodiscard]] std::string list_names(const std::vector<std::string>& names, size_t most);

}  // namespace kinora
