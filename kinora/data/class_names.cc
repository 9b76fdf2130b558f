#include "kinora/data/class_names.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace kinora::data {

bool has_suffix(std::string_view file_name, std::span<const std::string_view> suffixes) {
  const size_t dot = file_name.rfind('.');
  if (dot == std::string_view::npos || file_name.front() == '.') {
    return false;
  }
  std::string suffix(file_name.substr(dot));
  for (char& c : suffix) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
}

bool is_image_name(std::string_view file_name) {
  constexpr std::array<std::string_view, 8> kSuffixes = {".jpg", ".jpeg", ".png", ".webp",
                                                         ".gif", ".bmp",  ".tif", ".tiff"};
  return has_suffix(file_name, kSuffixes);
}

bool is_video_name(std::string_view file_name) {
  constexpr std::array<std::string_view, 7> kSuffixes = {".mp4",  ".m4v", ".mov", ".mkv",
                                                         ".webm", ".avi", ".gif"};
  return has_suffix(file_name, kSuffixes);
}

std::string_view image_suffixes() {
  return ".jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff";
}

std::string_view video_suffixes() {
  return ".mp4, .m4v, .mov, .mkv, .webm, .avi or .gif";
}

int64_t find_class(const std::vector<std::string>& names, std::string_view name) {
  return std::lower_bound(names.begin(), names.end(), name) - names.begin();
}

}  // namespace kinora::data
