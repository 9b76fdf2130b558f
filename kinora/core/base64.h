#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kinora {

/// Bytes as base64 (RFC 4648), with padding.
[[nodiscard]] std::string encode_base64(std::span<const std::byte> bytes);

/// The bytes that base64 stands for, with padding or without; nothing if it is not well-formed.
[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

}  // namespace kinora
