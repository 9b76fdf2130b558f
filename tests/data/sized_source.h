#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/bucket.h"
#include "kinora/data/source.h"
#include "tests/data/files.h"

namespace kinora::data {

/// Grey images and clips of the given sizes; sample i is of class i.
class SizedSource : public Source {
 public:
  explicit SizedSource(std::vector<SampleFacts> sizes) : sizes_(std::move(sizes)) {}

  [[nodiscard]] int64_t size() const override { return std::ssize(sizes_); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] bool is_video() const override { return true; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return "number " + std::to_string(index);
  }
  [[nodiscard]] SampleFacts facts(int64_t index) const override {
    if (unreadable.contains(index)) {
      throw Error(ErrorKind::kIo, "[test] number " + std::to_string(index) + " has no header");
    }
    return sizes_[static_cast<size_t>(index)];
  }
  void read(int64_t index, Sample& out) const override {
    if (bad.contains(index)) {
      throw Error(ErrorKind::kIo, "[test] number " + std::to_string(index) + " is bad");
    }
    const SampleFacts& size = sizes_[static_cast<size_t>(index)];
    out.image =
        grey_image(static_cast<uint8_t>(index % 251), size.height, size.width * size.num_frames);
    out.num_frames = size.num_frames;
    out.fps = size.fps;
    out.label = index;
  }

  std::set<int64_t> bad;
  std::set<int64_t> unreadable;

 private:
  std::vector<SampleFacts> sizes_;
  std::vector<std::string> names_ = {"only"};
};

[[nodiscard]] inline SampleFacts sized(int64_t height, int64_t width, int64_t frames = 1) {
  return {.height = height, .width = width, .num_frames = frames, .fps = frames > 1 ? 8.0F : 0.0F};
}

[[nodiscard]] inline std::vector<SampleFacts> repeat(
    std::initializer_list<std::pair<SampleFacts, int64_t>> groups) {
  std::vector<SampleFacts> sizes;
  for (const auto& [size, count] : groups) {
    sizes.insert(sizes.end(), static_cast<size_t>(count), size);
  }
  return sizes;
}

/// Buckets of about 32 x 32 and 16 x 16 pixels, images and clips of 4 frames.
[[nodiscard]] inline BucketOptions small_table(double keep_large = 1.0) {
  return {.rows = {{"32px", 1, {keep_large, 4.0}},
                   {"32px", 4, {keep_large, 2.0}},
                   {"16px", 1, {1.0, 8.0}},
                   {"16px", 4, {1.0, 4.0}}},
          .ratios = AspectRatios::kOpenSora2,
          .multiple = 8};
}

}  // namespace kinora::data
