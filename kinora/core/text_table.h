#pragma once

#include <string>
#include <vector>

namespace kinora {

/// `rows` below each other, a line each without its end, columns as wide as their widest cell and
/// two spaces apart. All rows have as many cells as the first; lines do not end with spaces.
[[nodiscard]] std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace kinora
