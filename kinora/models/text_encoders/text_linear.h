#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/nn/weight_layer.h"

namespace kinora::models {

/// How a linear's frozen weight is stored in 8 bits, with one scale an output channel.
enum class EightBit {
  kInt8,  ///< whole numbers from -127 to 127
  kFp8,   ///< E4M3, whose largest number is 448
};

/// An 8-bit weight; it stands for values * scale.
struct EightBitWeight {
  at::Tensor values;  ///< [out, in], kChar or kFloat8_e4m3fn
  at::Tensor scale;   ///< fp32 [out, 1], each a number that bf16 has
};

/// The nearest 8-bit weight of `weight` [out, in], any floating type. A value of a row whose
/// largest magnitude is m is off by at most m / 250 in int8, and by v / 16 + m / 400'000 in fp8, v
/// being its own magnitude.
[[nodiscard]] EightBitWeight to_eight_bits(const at::Tensor& weight, EightBit format);

/// y = x W^T + b with `weight` [out, in] and `bias` [out], if it has one, in the weight's type. The
/// weight may lie in 8 bits: then it is widened at each use. It may have an update.
class TextLinear : public nn::WeightLayer {
 public:
  TextLinear(int64_t in_features, int64_t out_features, nn::Init init, bool has_bias);

  /// x: [rows, in], any floating type. Returns [rows, out] in type().
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  /// [out, in] in type(): the weight itself, or a new one that was widened.
  [[nodiscard]] at::Tensor wide_weight() const;

  /// What it computes in.
  [[nodiscard]] at::ScalarType type() const;

  /// Takes an 8-bit weight on some device, frozen, which forward() widens to `type`.
  void set_eight_bits(const EightBitWeight& eight_bits, at::ScalarType type);

 private:
  at::Tensor scale_;  // of an 8-bit weight, else undefined
  at::ScalarType wide_type_ = at::kFloat;
};

}  // namespace kinora::models
