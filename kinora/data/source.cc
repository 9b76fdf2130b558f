#include "kinora/data/source.h"

#include <algorithm>
#include <span>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::data {

std::string SampleShape::text() const {
  const auto sides = [](int64_t rows, int64_t columns) {
    return std::to_string(rows) + " x " + std::to_string(columns);
  };
  const std::string size = std::to_string(channels) + " x " + sides(height, width);
  return pixel_height == 0 ? size : size + " (" + sides(pixel_height, pixel_width) + " pixels)";
}

SampleFacts Source::facts(int64_t index) const {
  Sample sample;
  SampleFacts facts = Source::check(index, sample);
  facts.checksum = 0;
  return facts;
}

SampleFacts Source::check(int64_t index, Sample& scratch) const {
  read(index, scratch);
  SampleFacts facts{.num_frames = scratch.num_frames,
                    .fps = scratch.fps,
                    .caption_length = std::ssize(scratch.caption)};
  if (const std::optional<SampleShape> latent = latent_shape()) {
    facts.height = latent->height;
    facts.width = latent->width;
    facts.checksum = io::checksum_value(scratch.latent.mean.bytes);
  } else {
    facts.height = scratch.image.height;
    facts.width = scratch.image.width / scratch.num_frames;
    facts.checksum = io::checksum_value(std::as_bytes(std::span(scratch.image.pixels)));
  }
  return facts;
}

const std::vector<PassedOver>& Source::passed_over() const {
  static const std::vector<PassedOver> kNothing;
  return kNothing;
}

int64_t allowed_bad(int64_t size, int64_t max_bad) {
  return max_bad >= 0 ? max_bad : std::max<int64_t>(10, size / 100);
}

void check_size(int64_t size, const std::string& origin) {
  KINORA_CHECK(size >= 2, kConfig, "[data] a set must hold at least 2 images, got ", size, " in ",
               origin, ". Hint: to fit a single image on purpose, put a copy of it beside it.");
}

}  // namespace kinora::data
