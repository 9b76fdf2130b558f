#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kinora {

/// The first of the names that `word` is most like, by edit_distance(); empty if it is like none.
[[nodiscard]] std::string nearest_name(std::string_view word,
                                       const std::vector<std::string>& names);

}  // namespace kinora
