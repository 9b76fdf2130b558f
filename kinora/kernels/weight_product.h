#pragma once

#include <cstdint>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/kernels/weight_codes.h"

/// Products of a few vectors with a weight [rows, width] that the CPU reads where it lies, in the
/// type or the codes that it is held in, and only once: as fast as its memory.
namespace kinora::kernels {

struct WeightProduct {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kF32;      ///< of `weight`: kF32, kBF16, kF16
  const void* weight = nullptr;  ///< contiguous; null: the weight is `codes`
  WeightCodes codes{};           ///< of a format that has_product, a scale a row
  int64_t num_vectors = 0;
  float* out = nullptr;  ///< [num_vectors, rows]
};

/// Whether products read such codes: kNf4 is faster brought to where it is multiplied in 16 bits.
[[nodiscard]] constexpr bool has_product(WeightFormat format) {
  return format != WeightFormat::kNf4;
}

/// `in` [num_vectors, width] as multiply_weight() reads it.
[[nodiscard]] std::vector<float> in_order_of_weight(const WeightProduct& call, const float* in);

/// out[v, r] = sum over c of in[v, c] weight[r, c] for the rows [first, end), in fp32, of weights
/// that are finite. The same bits by whatever instructions, and whatever rows and vectors are
/// computed together.
/// @param ordered  in_order_of_weight() of `in`.
void multiply_weight(const WeightProduct& call, const std::vector<float>& ordered, int64_t first,
                     int64_t end);

}  // namespace kinora::kernels
