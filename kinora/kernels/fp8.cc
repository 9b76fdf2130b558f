#include "kinora/kernels/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kinora/kernels/column_sums.h"
#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

float larger(float amax, float value) {  // as integers, so that NaN is the largest
  return std::bit_cast<float>(
      std::max(std::bit_cast<uint32_t>(amax), std::bit_cast<uint32_t>(std::abs(value))));
}

/// Blocks of block_rows x 128 of a matrix [rows, width] whose element (r, c) is element(r, c).
template <typename Element>
void quantise_blocks(int64_t rows, int64_t width, bool is_square, DType type,
                     const Element& element, uint8_t* out, float* factors) {
  const float largest = type == DType::kF8E4M3 ? kLargestE4M3 : kLargestE5M2;
  const int64_t block_rows = is_square ? kScaleBlock : 1;
  std::fill_n(factors, block_factors(rows, width, is_square), 0.0F);
  const int64_t padded = block_factors(1, width, true);
  for (int64_t row = 0; row < rows; row += block_rows) {
    for (int64_t column = 0; column < width; column += kScaleBlock) {
      const int64_t row_end = std::min(row + block_rows, rows);
      const int64_t column_end = std::min(column + kScaleBlock, width);
      float amax = 0.0F;
      for (int64_t r = row; r < row_end; ++r) {
        for (int64_t c = column; c < column_end; ++c) {
          amax = larger(amax, element(r, c));
        }
      }
      const BlockScale scale = block_scale(largest, amax);
      const int64_t block = column / kScaleBlock;
      factors[is_square ? row / kScaleBlock * padded + block : block * rows + row] = scale.factor;
      for (int64_t r = row; r < row_end; ++r) {
        for (int64_t c = column; c < column_end; ++c) {
          out[r * width + c] = float_to_fp8(element(r, c) * scale.scale, type);
        }
      }
    }
  }
}

}  // namespace

void quantise(const Quantise& call) {
  const int64_t stride = call.row_stride == 0 ? call.width : call.row_stride;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      store_fp8(call.out, call.rows, call.width, row, column,
                load_element(call.in, row * stride + column, call.type));
    }
  }
  if (call.column_sums != nullptr) {
    column_sums({.rows = call.rows,
                 .width = call.width,
                 .row_stride = stride,
                 .type = call.type,
                 .in = call.in,
                 .out = call.column_sums});
  }
}

void transpose_bytes(const void* in, int64_t rows, int64_t width, void* out) {
  const int64_t pitch = transposed_pitch(rows);
  for (int64_t column = 0; column < width; ++column) {
    for (int64_t row = 0; row < pitch; ++row) {
      static_cast<uint8_t*>(out)[column * pitch + row] =
          row < rows ? static_cast<const uint8_t*>(in)[row * width + column] : uint8_t{0};
    }
  }
}

void update_scales(const ScaleUpdate& call) {
  for (int64_t i = 0; i < call.count; ++i) {
    const float amax = call.amax[i];
    float largest_seen = amax;
    if (call.window > 0) {
      float* const history = call.history + i * call.window;
      std::copy_backward(history, history + call.window - 1, history + call.window);
      history[0] = std::isfinite(amax) ? amax : 0.0F;
      largest_seen = *std::max_element(history, history + call.window);
    }
    if (std::isfinite(amax)) {
      call.scale[i] = next_scale(call.largest[i], largest_seen, call.margin, call.scale[i]);
    }
    call.inverse_scale[i] = 1.0F / call.scale[i];
    call.amax[i] = 0.0F;
  }
}

void block_quantise(const BlockQuantise& call) {
  if (call.data != nullptr) {
    quantise_blocks(
        call.rows, call.width, call.is_square, call.out_type,
        [&](int64_t r, int64_t c) { return load_element(call.in, r * call.width + c, call.type); },
        static_cast<uint8_t*>(call.data), call.factors);
  }
  if (call.transposed != nullptr) {
    quantise_blocks(
        call.width, call.rows, call.is_square, call.out_type,
        [&](int64_t r, int64_t c) { return load_element(call.in, c * call.width + r, call.type); },
        static_cast<uint8_t*>(call.transposed), call.transposed_factors);
  }
}

}  // namespace kinora::kernels
