#include "kinora/core/base64.h"

#include <cstdint>

#include "kinora/core/rounding.h"

namespace kinora {

std::string encode_base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve(ceil_div(bytes.size(), 3) * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) {
      three = three << 8U | (i + k < bytes.size() ? std::to_integer<uint32_t>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      const bool is_padding = i + k > bytes.size();
      text += is_padding ? '=' : kDigits[three >> (18U - 6U * k) & 63U];
    }
  }
  return text;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (!text.empty() && text.back() == '=') {
    text.remove_suffix(1);
  }
  if (text.size() % 4 == 1) {
    return std::nullopt;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const uint32_t value = c >= 'A' && c <= 'Z'   ? static_cast<uint32_t>(c - 'A')
                           : c >= 'a' && c <= 'z' ? static_cast<uint32_t>(c - 'a' + 26)
                           : c >= '0' && c <= '9' ? static_cast<uint32_t>(c - '0' + 52)
                           : c == '+'             ? 62U
                           : c == '/'             ? 63U
                                                  : 64U;
    if (value == 64) {
      return std::nullopt;
    }
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xFF);
    }
  }
  return bytes;
}

}  // namespace kinora
