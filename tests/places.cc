#include "tests/places.h"

namespace kinora {

std::filesystem::path source_path(std::string_view name) {
  return std::filesystem::path(KINORA_SOURCE_DIR) / name;
}

std::filesystem::path build_path(std::string_view name) {
  return std::filesystem::path(KINORA_BUILD_DIR) / name;
}

}  // namespace kinora
