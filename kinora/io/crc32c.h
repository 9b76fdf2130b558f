#pragma once

#include <cstdint>
#include <string_view>

namespace kinora::io {

/// CRC-32C (Castagnoli), as of RFC 3720, appendix B.4: polynomial 0x1EDC6F41, reflected.
[[nodiscard]] uint32_t crc32c(std::string_view bytes);

}  // namespace kinora::io
