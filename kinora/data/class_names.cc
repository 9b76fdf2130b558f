#include "kinora/data/class_names.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace kinora::data {

bool is_image_name(std::string_view file_name) {
  if (file_name.empty() || file_name.front() == '.') {
    return false;
  }
  const size_t dot = file_name.rfind('.');
  if (dot == std::string_view::npos) {
    return false;
  }
  std::string suffix(file_name.substr(dot));
  for (char& c : suffix) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  constexpr std::array<std::string_view, 4> kSuffixes = {".jpg", ".jpeg", ".png", ".webp"};
  return std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end();
}

std::string_view image_suffixes() {
  return ".jpg, .jpeg, .png or .webp";
}

int64_t find_class(const std::vector<std::string>& names, std::string_view name) {
  return std::lower_bound(names.begin(), names.end(), name) - names.begin();
}

}  // namespace kinora::data
