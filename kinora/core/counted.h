#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kinora {

/// "1 sample", "2 samples"; `plural` where it is more than an s behind the word.
[[nodiscard]] inline std::string counted(int64_t count, std::string_view singular,
                                         std::string_view plural = {}) {
  std::string text = std::to_string(count) + " ";
  if (count == 1 || plural.empty()) {
    return text.append(singular).append(count == 1 ? "" : "s");
  }
  return text.append(plural);
}

}  // namespace kinora
