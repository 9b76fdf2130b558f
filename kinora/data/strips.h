#pragma once

#include <cstdint>
#include <memory>

#include "kinora/data/wrapped_source.h"

namespace kinora::data {

/// The images of another source taken for clips: strips of square frames side by side, the first at
/// the left. A strip whose width is no multiple of its height is an unreadable sample.
class StripSource : public WrappedSource {
 public:
  /// `fps`: frames a second of every clip. `strips` gives images.
  StripSource(std::unique_ptr<Source> strips, float fps);

  [[nodiscard]] bool is_video() const override { return true; }
  void read(int64_t index, Sample& out) const override;
  [[nodiscard]] SampleFacts facts(int64_t index) const override;
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override;

 private:
  /// How many frames a strip of that size holds.
  [[nodiscard]] int64_t num_frames(int64_t index, int64_t height, int64_t width) const;
  [[nodiscard]] SampleFacts of_frames(int64_t index, SampleFacts strip) const;

  float fps_;
};

}  // namespace kinora::data
