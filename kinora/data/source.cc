#include "kinora/data/source.h"

#include "kinora/core/error.h"

namespace kinora::data {

std::string SampleShape::text() const {
  const auto sides = [](int64_t rows, int64_t columns) {
    return std::to_string(rows) + " x " + std::to_string(columns);
  };
  const std::string size = std::to_string(channels) + " x " + sides(height, width);
  return pixel_height == 0 ? size : size + " (" + sides(pixel_height, pixel_width) + " pixels)";
}

void check_size(int64_t size, const std::string& origin) {
  KINORA_CHECK(size >= 2, kConfig, "[data] a set must hold at least 2 images, got ", size, " in ",
               origin, ". Hint: to fit a single image on purpose, put a copy of it beside it.");
}

}  // namespace kinora::data
