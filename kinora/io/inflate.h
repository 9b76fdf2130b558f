#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kinora::io {

/// The content of a raw deflate stream (RFC 1951, without a header of zlib or gzip), which must be
/// `size` bytes long. Throws kIo, naming `name`, for damaged and cut off streams, another size, and
/// a size that so few bytes cannot hold: before memory is asked for.
[[nodiscard]] std::vector<std::byte> inflate(std::span<const std::byte> packed, uint64_t size,
                                             const std::string& name);

}  // namespace kinora::io
