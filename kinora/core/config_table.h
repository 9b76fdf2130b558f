#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora {

/// A value of a configuration with two keys: `{first: {second: [numbers]}}`, as rows in the order
/// in which they stand.
struct ConfigTableRow {
  std::string first;
  int64_t second = 0;
  std::vector<double> numbers;  ///< lists inside the list are taken apart: [[a, b], c] is a, b, c

  bool operator==(const ConfigTableRow&) const = default;
};
using ConfigTable = std::vector<ConfigTableRow>;

}  // namespace kinora
