#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace kinora::ops {

/// A low-rank update of a weight (Hu et al. 2021, "LoRA", section 4.1): y += scale (x A^T) B^T, in
/// the compute type, and where backward adds the gradients (fp32; undefined outside of training).
struct LowRankWeights {
  at::Tensor a;  ///< [rank, in]
  at::Tensor b;  ///< [out, rank]
  at::Tensor a_grad;
  at::Tensor b_grad;
  double scale = 1.0;
};

/// Weights of y = x W^T + b in the compute type, and where backward adds their gradients (fp32; may
/// be undefined: outside of training, and where they are frozen).
struct LinearWeights {
  at::Tensor weight;  ///< [out, in]
  at::Tensor bias;    ///< [out]
  at::Tensor weight_grad;
  at::Tensor bias_grad;
  /// The linear's number in its model, by which it is known to Fp8; negative: never in fp8.
  int64_t number = -1;
  std::optional<LowRankWeights> update{};
};

/// Linears on the same input as few products as can be: neighbours without updates whose weights,
/// biases and gradients each lie one behind the other in memory become one.
[[nodiscard]] std::vector<LinearWeights> merge_adjacent(const std::vector<LinearWeights>& linears);

}  // namespace kinora::ops
