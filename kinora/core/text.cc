#include "kinora/core/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace kinora {
namespace {

template <typename... Args>
std::string print(const char* pattern, Args... args) {
  std::array<char, 64> buffer;
  const int size = std::snprintf(buffer.data(), buffer.size(), pattern, args...);
  return {buffer.data(), std::min(static_cast<size_t>(size), buffer.size() - 1)};
}

/// "1.5", "15.2", "1023" of a number below `next`, the size of the next unit.
std::string scaled(double value) {
  return value < 99.95 && std::round(value * 10.0) != std::round(value) * 10.0
             ? print("%.1f", value)
             : print("%.0f", value);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return (value < 0.0 ? "-" : "") + scaled(std::abs(value)) + " " + kUnits[unit];
}

std::string human_number(double value, int digits) {
  return print("%.*g", digits, value);
}

std::string human_duration(double seconds) {
  constexpr double kMost = 1e12;  // far beyond every real duration, and an int64_t holds it
  if (!(seconds >= 0.0 && seconds < kMost)) {
    return "?";
  }
  if (seconds < 9.95) {
    return print(seconds < 0.995 ? "%.2f s" : "%.1f s", seconds);
  }
  const long long whole = std::llround(seconds);
  const long long minutes = whole / 60;
  const long long hours = minutes / 60;
  if (whole < 60) {
    return print("%lld s", whole);
  }
  if (minutes < 60) {
    return print("%lldm %02llds", minutes, whole % 60);
  }
  if (hours < 48) {
    return print("%lldh %02lldm", hours, minutes % 60);
  }
  return print("%lldd %02lldh", hours / 24, hours % 24);
}

std::string human_count(int64_t count) {
  constexpr std::array<const char*, 6> kUnits = {"", "k", "M", "G", "T", "P"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return (value < 0.0 ? "-" : "") + scaled(std::abs(value)) + kUnits[unit];
}

std::string human_rate(double per_second) {
  if (!(per_second > 0.0) || !std::isfinite(per_second)) {
    return per_second == 0.0 ? "0" : "?";
  }
  if (per_second >= 1e15) {
    return human_number(per_second, 3);
  }
  const int digits_before = static_cast<int>(std::floor(std::log10(per_second))) + 1;
  return print("%.*f", std::clamp(3 - digits_before, 0, 9), per_second);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    if (end == std::string_view::npos) {
      pieces.push_back(text.substr(begin));
      return pieces;
    }
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

int64_t edit_distance(std::string_view a, std::string_view b) {
  // rows i - 2, i - 1 and i of the table: distance of a's first i and b's first j bytes
  std::vector<int64_t> two_up(b.size() + 1);
  std::vector<int64_t> up(b.size() + 1);
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = static_cast<int64_t>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    two_up.swap(up);
    up.swap(row);
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t substitution = up[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({substitution, up[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_up[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string wrap(std::string_view text, size_t width, size_t indent) {
  std::string result;
  size_t column = 0;  // 0: at the start of a line
  for (const std::string_view word : split(text, ' ')) {
    if (word.empty()) {
      continue;
    }
    if (column > 0 && column + 1 + word.size() > width) {
      result += '\n';
      column = 0;
    }
    result += column == 0 ? std::string(indent, ' ') : " ";
    column = (column == 0 ? indent : column + 1) + word.size();
    result += word;
  }
  return result + "\n";
}

bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  for (size_t i = 0; i < text.size();) {
    const uint32_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) {
      return false;
    }
    uint32_t code = lead & (0x7fU >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0U) != 0x80U) {
        return false;
      }
      code = (code << 6) | (byte(i + k) & 0x3fU);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += print("\\x%02x", static_cast<unsigned>(byte));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string list_names(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += i == 0 ? "" : ", ";
    text += names[i];
  }
  if (names.size() > most) {
    text += ", and " + std::to_string(names.size() - most) + " more";
  }
  return text;
}

}  // namespace kinora
