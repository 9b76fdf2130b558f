#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kinora/io/safetensors.h"

namespace kinora::data {

/// Texts in a mapped safetensors file: one behind the other in a tensor NAMEs, U8, and where each
/// ends in NAME_ends, I64 [K]. They live as long as the file.
class MappedStrings {
 public:
  MappedStrings() = default;
  /// kIo for a file that lacks them, or where they do not fit together.
  MappedStrings(const io::SafetensorsFile& file, const std::string& name);

  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] std::string_view at(int64_t index) const;

 private:
  std::span<const std::byte> bytes_;
  std::span<const std::byte> ends_;
  int64_t size_ = 0;
};

}  // namespace kinora::data
