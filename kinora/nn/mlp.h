#pragma once

#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/ops/block_stack.h"

namespace kinora::nn {

/// fc2(GELU_tanh(fc1(x))): [..., in] -> [..., out].
class Mlp : public Module {
 public:
  Mlp(int64_t in_features, int64_t hidden, int64_t out_features, bool fp32_island = false);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// For the fast path.
  [[nodiscard]] ops::MlpBody body() const { return {fc1.weights(), fc2.weights()}; }

  Linear fc1;
  Linear fc2;
};

}  // namespace kinora::nn
