#pragma once

#include <cstddef>
#include <cstdint>

#include "kinora/core/philox.h"

namespace kinora::data {

/// The numbers of a stream, one after the other.
class Draws {
 public:
  explicit Draws(const RandomStream& stream) : stream_(stream) {}

  [[nodiscard]] double uniform() { return random_uniform(stream_, element_++); }
  /// In [0, bound).
  [[nodiscard]] size_t index(size_t bound) {
    return random_index(stream_, element_++, static_cast<uint32_t>(bound));
  }

 private:
  RandomStream stream_;
  uint64_t element_ = 0;
};

}  // namespace kinora::data
