#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// The two passes of Resizer. Not for use outside io/.
namespace kinora::io {

/// Weights have so many fractional bits: 8-bit pixels, and 2 bits of headroom for overshoot.
inline constexpr int kWeightBits = 32 - 8 - 2;

/// The filter of one axis: output i is the sum over weights[i * stride + k], k < taps[i], of the
/// inputs from first[i] on, which never go back.
struct AxisFilter {
  int64_t stride = 0;
  std::vector<int64_t> first;
  std::vector<int64_t> taps;
  std::vector<int32_t> weights;

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(first.size()); }
  /// The inputs that are read.
  [[nodiscard]] int64_t begin() const { return first.front(); }
  [[nodiscard]] int64_t end() const { return first.back() + taps.back(); }
};

/// Rows of RGB pixels in memory.
struct Rows {
  const uint8_t* pixels;
  int64_t count;
  int64_t stride;  ///< bytes from row to row
};

/// Each row of `in` filtered along itself, to filter.size() pixels; `out` has rows without gaps.
/// Reads pixels [filter.begin(), filter.end()) only. `scratch` is reused.
void filter_along_rows(const Rows& in, const AxisFilter& filter, std::vector<uint8_t>& scratch,
                       uint8_t* out);

/// filter.size() rows of row_bytes, whose inputs are rows of `in`, the first of which is number
/// filter.begin(); `out` has rows without gaps.
void filter_along_columns(const Rows& in, const AxisFilter& filter, int64_t row_bytes,
                          uint8_t* out);

}  // namespace kinora::io
