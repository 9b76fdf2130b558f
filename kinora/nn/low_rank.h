#pragma once

#include <cstdint>
#include <optional>

#include "kinora/nn/module.h"
#include "kinora/ops/linear_weights.h"

namespace kinora::nn {

struct LowRankOptions {
  int64_t rank = 8;
  /// Of the update: alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023, "rsLoRA").
  double scale = 1.0;
  bool dora = false;
};

/// A trained change of a linear whose own weight W [out, in] and bias are frozen.
///
/// LoRA (Hu et al. 2021, section 4.1): y = x (W + s B A)^T + b with A [rank, in], B [out, rank].
/// A starts as a linear of PyTorch does, U(-1 / sqrt(in), 1 / sqrt(in)), B at zero.
/// DoRA (Liu et al. 2024, sections 4.1 and 4.3): y = x (m (W + s B A) / |W + s B A|)^T + b with a
/// magnitude m [out] for the norm of each row, through which no gradient goes. m must be set to
/// W's norms once W is there.
///
/// Keys as PEFT's: lora_A.weight, lora_B.weight, lora_magnitude_vector.
class LowRankUpdate : public Module {
 public:
  LowRankUpdate(int64_t in_features, int64_t out_features, const LowRankOptions& options,
                bool fp32_island);

  /// x: [..., in] in the weight's dtype. Returns [..., out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias) const;

  /// For the fast path: all but the magnitude.
  [[nodiscard]] ops::LowRankWeights weights() const {
    return {a_.weight.value, b_.weight.value, a_.weight.grad, b_.weight.grad, scale_};
  }

  [[nodiscard]] bool has_magnitude() const { return magnitude_.has_value(); }

 private:
  struct Factor : Module {
    Factor(int64_t rows, int64_t columns, Init init, bool fp32_island);
    Parameter weight;
  };

  double scale_;
  Factor a_;
  Factor b_;
  std::optional<Parameter> magnitude_;
};

}  // namespace kinora::nn
