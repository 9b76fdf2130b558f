#include "kinora/io/filter_passes.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Both passes work on kGroup values at once that share their weights: along columns on neighbours
// in a row, along rows on the same pixel of kLanes rows, for which these are transposed first.
// 32-bit integer sums are exact, so neither the order nor the instruction set shows in the result.

namespace kinora::io {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kGroup = 3 * kLanes;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

/// out[i] = the sum over k < taps of weights[k] * values[k * stride + i], i < kGroup.
using FilterGroup = void (*)(const uint8_t* values, int64_t stride, const int32_t* weights,
                             int64_t taps, uint8_t* out);

void filter_group(const uint8_t* values, int64_t stride, const int32_t* weights, int64_t taps,
                  uint8_t* out) {
  int32_t sums[kGroup];
  std::fill_n(sums, kGroup, kHalf);
  for (int64_t k = 0; k < taps; ++k, values += stride) {
    for (int64_t i = 0; i < kGroup; ++i) {
      sums[i] += values[i] * weights[k];
    }
  }
  for (int64_t i = 0; i < kGroup; ++i) {
    out[i] = static_cast<uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
  }
}

#if defined(__x86_64__)

// Two 16-bit numbers, the first in the low half, eight times.
[[gnu::target("avx2")]] inline __m256i repeat(int32_t first, int32_t second) {
  return _mm256_set1_epi32((first & 0xffff) |
                           static_cast<int32_t>(static_cast<uint32_t>(second) << 16));
}

// The products of 16-bit numbers are summed in pairs, of two taps; for that a weight is divided
// into its upper bits and its lowest kLowBits.
[[gnu::target("avx2")]] void filter_group_avx2(const uint8_t* values, int64_t stride,
                                               const int32_t* weights, int64_t taps, uint8_t* out) {
  constexpr int kLowBits = 8;
  constexpr int32_t kLowMask = (1 << kLowBits) - 1;
  constexpr size_t kParts = kGroup / 8;
  __m256i upper[kParts];
  __m256i lower[kParts];
  for (size_t part = 0; part < kParts; ++part) {
    upper[part] = _mm256_setzero_si256();
    lower[part] = _mm256_set1_epi32(kHalf);
  }
  for (int64_t k = 0; k < taps; k += 2, values += 2 * stride) {
    const bool has_second = k + 1 < taps;
    const uint8_t* second_values = has_second ? values + stride : values;
    const int32_t first = weights[k];
    const int32_t second = has_second ? weights[k + 1] : 0;
    const __m256i upper_weights = repeat(first >> kLowBits, second >> kLowBits);
    const __m256i lower_weights = repeat(first & kLowMask, second & kLowMask);
#pragma GCC unroll 3
    for (size_t part = 0; part < kParts; part += 2) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + part * 8));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second_values + part * 8));
      const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
      const __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
      upper[part] = _mm256_add_epi32(upper[part], _mm256_madd_epi16(low, upper_weights));
      lower[part] = _mm256_add_epi32(lower[part], _mm256_madd_epi16(low, lower_weights));
      upper[part + 1] = _mm256_add_epi32(upper[part + 1], _mm256_madd_epi16(high, upper_weights));
      lower[part + 1] = _mm256_add_epi32(lower[part + 1], _mm256_madd_epi16(high, lower_weights));
    }
  }
#pragma GCC unroll 3
  for (size_t part = 0; part < kParts; part += 2) {
    const auto pixels = [&](size_t i) __attribute__((target("avx2"))) {
      const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(upper[i], kLowBits), lower[i]);
      return _mm256_srai_epi32(sum, kWeightBits);
    };
    // Packing saturates, and works within halves of 128 bits.
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(pixels(part), pixels(part + 1)), _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + part * 8), bytes);
  }
}

#endif

FilterGroup choose_filter_group() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return filter_group_avx2;
  }
#endif
  return filter_group;
}

using Bytes [[gnu::vector_size(kLanes)]] = uint8_t;

// A square of kLanes x kLanes bytes. Each turn interleaves row i with row i + 8; after four, the
// bits of row and column have changed places.
inline void transpose_square(const uint8_t* const* in, int64_t in_offset, uint8_t* out,
                             int64_t out_stride) {
  constexpr int64_t kHalfLanes = kLanes / 2;
  Bytes rows[kLanes];
  Bytes next[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    std::memcpy(&rows[i], in[i] + in_offset, sizeof(Bytes));
  }
  for (int turn = 0; turn < 4; ++turn) {
    for (int64_t i = 0; i < kHalfLanes; ++i) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + kHalfLanes],  //
                                            0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] =
          __builtin_shufflevector(rows[i], rows[i + kHalfLanes],  //
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::memcpy(rows, next, sizeof(rows));
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    std::memcpy(out + i * out_stride, &rows[i], sizeof(Bytes));
  }
}

// kLanes rows of `count` bytes: byte x of row r goes to out[x * kLanes + r].
void to_columns(const uint8_t* const* rows, int64_t count, uint8_t* out) {
  int64_t x = 0;
  for (; x + kLanes <= count; x += kLanes) {
    transpose_square(rows, x, out + x * kLanes, kLanes);
  }
  for (; x < count; ++x) {
    for (int64_t row = 0; row < kLanes; ++row) {
      out[x * kLanes + row] = rows[row][x];
    }
  }
}

// Back again: the first num_rows of them to `out`, rows of `count` bytes without gaps.
void to_rows(const uint8_t* columns, int64_t count, int64_t num_rows, uint8_t* out) {
  int64_t x = 0;
  if (num_rows == kLanes) {
    for (; x + kLanes <= count; x += kLanes) {
      const uint8_t* places[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        places[i] = columns + (x + i) * kLanes;
      }
      transpose_square(places, 0, out + x, count);
    }
  }
  for (; x < count; ++x) {
    for (int64_t row = 0; row < num_rows; ++row) {
      out[row * count + x] = columns[x * kLanes + row];
    }
  }
}

}  // namespace

void filter_along_rows(const Rows& in, const AxisFilter& filter, std::vector<uint8_t>& scratch,
                       uint8_t* out) {
  static const FilterGroup kFilterGroup = choose_filter_group();
  const int64_t begin = filter.begin();
  const int64_t in_bytes = (filter.end() - begin) * 3;
  const int64_t out_bytes = filter.size() * 3;
  scratch.resize(static_cast<size_t>((in_bytes + out_bytes) * kLanes));
  uint8_t* const made = scratch.data() + in_bytes * kLanes;
  for (int64_t row = 0; row < in.count; row += kLanes) {
    const uint8_t* rows[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {  // the last row stands in for those behind it
      rows[i] = in.pixels + std::min(row + i, in.count - 1) * in.stride + begin * 3;
    }
    to_columns(rows, in_bytes, scratch.data());
    for (int64_t i = 0; i < filter.size(); ++i) {
      const auto pixel = static_cast<size_t>(i);
      kFilterGroup(scratch.data() + (filter.first[pixel] - begin) * kGroup, kGroup,
                   filter.weights.data() + i * filter.stride, filter.taps[pixel],
                   made + i * kGroup);
    }
    to_rows(made, out_bytes, std::min(kLanes, in.count - row), out + row * out_bytes);
  }
}

void filter_along_columns(const Rows& in, const AxisFilter& filter, int64_t row_bytes,
                          uint8_t* out) {
  static const FilterGroup kFilterGroup = choose_filter_group();
  for (int64_t i = 0; i < filter.size(); ++i, out += row_bytes) {
    const auto row = static_cast<size_t>(i);
    const int32_t* weights = filter.weights.data() + i * filter.stride;
    const int64_t taps = filter.taps[row];
    const uint8_t* from = in.pixels + (filter.first[row] - filter.begin()) * in.stride;
    int64_t x = 0;
    for (; x + kGroup <= row_bytes; x += kGroup) {
      kFilterGroup(from + x, in.stride, weights, taps, out + x);
    }
    for (; x < row_bytes; ++x) {
      int32_t sum = kHalf;
      for (int64_t k = 0; k < taps; ++k) {
        sum += from[k * in.stride + x] * weights[k];
      }
      out[x] = static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
    }
  }
}

}  // namespace kinora::io
