#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "tests/apps/run_folder.h"

/// What tests of `kinora sample` of clips share.
namespace kinora::apps {

/// Turns the tiny recipe into one of clips with captions.
inline const Arguments kClips =
    joined(kReads, {"data.source=moving_shapes", "data.frames=4", "model.learn_sigma=false",
                    "objective.kind=flow", "frame_masks.image_head=0.3"});

inline io::Image read_image(const std::filesystem::path& path) {
  return io::decode_image(io::read_file(path, 1 << 20), path.string());
}

/// How far the 8-bit values of two pictures of a size are from each other.
struct Difference {
  int most = 0;
  double mean = 0.0;
};

inline Difference difference_of(const io::Image& left, const io::Image& right) {
  Difference result;
  EXPECT_EQ(left.height, right.height);
  EXPECT_EQ(left.pixels.size(), right.pixels.size());
  if (left.pixels.size() != right.pixels.size()) {
    return result;
  }
  for (size_t i = 0; i < left.pixels.size(); ++i) {
    const int each = std::abs(int{left.pixels[i]} - int{right.pixels[i]});
    result.most = std::max(result.most, each);
    result.mean += each / static_cast<double>(left.pixels.size());
  }
  return result;
}

}  // namespace kinora::apps
