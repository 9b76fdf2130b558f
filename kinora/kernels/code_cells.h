#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kinora/kernels/block_codes.h"

namespace kinora::kernels {

/// The bounds of a map by the floats around them, so that the CPU finds a code by one look and one
/// comparison, where nearest_code takes eight. A cell is the floats that share sign, exponent and
/// the first seven bits of the mantissa; it has one bound at most.
class CodeCells {
 public:
  constexpr CodeCells(const CodeMap& map, bool is_signed) : is_signed_(is_signed) {
    std::copy_n(map.bound, 255, bound_);
    bound_[255] = std::numeric_limits<float>::infinity();
    int code = is_signed ? 127 : 0;
    for (int cell = 0; cell < kCells; ++cell) {
      while (bound_[code] < least_of(cell)) {
        ++code;
      }
      first_[cell] = static_cast<uint8_t>(code);
    }
    code = 127;
    for (int cell = 0; is_signed && cell < kCells; ++cell) {
      while (code > 0 && bound_[code - 1] > -least_of(cell + 1)) {
        --code;
      }
      first_[kCells + cell] = static_cast<uint8_t>(code);
    }
  }

  /// Whether no cell has two bounds.
  [[nodiscard]] constexpr bool is_exact() const {
    for (int cell = 0; cell + 1 < kCells; ++cell) {
      if (first_[cell + 1] > first_[cell] + 1 ||
          (is_signed_ && first_[kCells + cell] > first_[kCells + cell + 1] + 1)) {
        return false;
      }
    }
    return true;
  }

  /// nearest_code of each value times `multiplier`. Of kCodeBlock values.
  [[gnu::always_inline]] void codes_of(const float* __restrict__ values, float multiplier,
                                       uint8_t* __restrict__ codes) const {
    float x[kCodeBlock];
    uint32_t cells[kCodeBlock];
    const float lowest = is_signed_ ? -1.0F : 0.0F;
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      const float value = values[i] * multiplier;
      const float from_lowest = value > lowest ? value : lowest;  // of NaN, too
      x[i] = from_lowest < 1.0F ? from_lowest : 1.0F;
      uint32_t bits;
      std::memcpy(&bits, &x[i], sizeof(bits));
      const uint32_t magnitude = bits & 0x7fffffffU;
      const uint32_t cell = ((magnitude > kLeast ? magnitude : kLeast) - kLeast) >> kDroppedBits;
      cells[i] = cell + (bits >> 31) * kCells;
    }
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      const uint8_t first = first_[cells[i]];
      codes[i] = static_cast<uint8_t>(first + (bound_[first] < x[i] ? 1 : 0));
    }
  }

 private:
  static constexpr uint32_t kLeast = 0x34000000U;  // 2^-23: nearer to 0 than any bound
  static constexpr uint32_t kOne = 0x3f800000U;
  static constexpr int kDroppedBits = 16;
  static constexpr int kCells = static_cast<int>((kOne - kLeast) >> kDroppedBits) + 1;

  /// The least magnitude of a cell.
  static constexpr float least_of(int cell) {
    const auto bits = kLeast + (static_cast<uint32_t>(cell) << kDroppedBits);
    return cell == 0 ? 0.0F : std::bit_cast<float>(bits);
  }

  bool is_signed_;
  uint8_t first_[2 * kCells] = {};  // bounds below all of a cell; those of negative floats follow
  float bound_[256] = {};
};

inline constexpr CodeCells kSignedCells(kSignedCodes, true);
inline constexpr CodeCells kUnsignedCells(kUnsignedCodes, false);
static_assert(kSignedCells.is_exact() && kUnsignedCells.is_exact());

}  // namespace kinora::kernels
