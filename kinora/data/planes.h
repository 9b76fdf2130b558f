#pragma once

#include <cstdint>

namespace kinora::data {

/// Divides a row of `width` RGB pixels into three rows, `plane` bytes apart, from its end to its
/// start if `mirrored`.
void write_planes(const uint8_t* pixels, int64_t width, bool mirrored, int64_t plane, uint8_t* out);

}  // namespace kinora::data
