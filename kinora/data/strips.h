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

 private:
  float fps_;
};

}  // namespace kinora::data
