#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What class folders on disk and in archives have in common.
namespace kinora::data {

/// Whether a file name ends in .jpg, .jpeg, .png or .webp, in any case, and is not hidden: names
/// that begin with a dot are not images even so (macOS leaves ._photo.jpg beside photo.jpg).
[[nodiscard]] bool is_image_name(std::string_view file_name);

/// ".jpg, .jpeg, .png or .webp".
[[nodiscard]] std::string_view image_suffixes();

/// The position of `name` in `names`, which is sorted and holds it.
[[nodiscard]] int64_t find_class(const std::vector<std::string>& names, std::string_view name);

}  // namespace kinora::data
