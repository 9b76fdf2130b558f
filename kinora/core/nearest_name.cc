#include "kinora/core/nearest_name.h"

#include <algorithm>
#include <cstdint>

#include "kinora/core/text.h"

namespace kinora {

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const auto distance = [&](const std::string& name) { return edit_distance(word, name); };
  const auto nearest =
      std::min_element(names.begin(), names.end(),
                       [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  const bool is_near =
      nearest != names.end() && distance(*nearest) <= 1 + static_cast<int64_t>(nearest->size()) / 4;
  return is_near ? *nearest : "";
}

}  // namespace kinora
