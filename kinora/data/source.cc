#include "kinora/data/source.h"

#include "kinora/core/error.h"

namespace kinora::data {

std::string SampleShape::text() const {
  return std::to_string(channels) + " x " + std::to_string(height) + " x " + std::to_string(width);
}

void check_size(int64_t size, const std::string& origin) {
  KINORA_CHECK(size >= 2, kConfig, "[data] a set must hold at least 2 images, got ", size, " in ",
               origin, ". Hint: to fit a single image on purpose, put a copy of it beside it.");
}

}  // namespace kinora::data
