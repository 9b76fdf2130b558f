#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora::inference {

/// The class that `word` means among `names`, which are by number: its whole name, or one of the
/// synonyms that a name lists ("tench, Tinca tinca"). Of several classes of one synonym, such as
/// ImageNet's two cranes, the last, as in diffusers. kConfig where there is none, with the nearest.
[[nodiscard]] int64_t class_of(const std::string& word, const std::vector<std::string>& names);

}  // namespace kinora::inference
