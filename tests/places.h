#pragma once

#include <filesystem>
#include <string_view>

/// Where tests find what they read and start.
namespace kinora {

/// A file of the repository, as "tests/io/data/photo.jpg".
[[nodiscard]] std::filesystem::path source_path(std::string_view name);

/// A file of the build, as "kinora".
[[nodiscard]] std::filesystem::path build_path(std::string_view name);

}  // namespace kinora
