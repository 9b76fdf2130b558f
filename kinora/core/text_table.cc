#include "kinora/core/text_table.h"

#include <algorithm>
#include <cstddef>

namespace kinora {

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  constexpr size_t kBetween = 2;  // columns
  std::vector<size_t> widths(rows.empty() ? 0 : rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] + kBetween - row[i].size(), ' ');
    }
    table += (table.empty() ? "" : "\n") + line.substr(0, line.find_last_not_of(' ') + 1);
  }
  return table;
}

}  // namespace kinora
