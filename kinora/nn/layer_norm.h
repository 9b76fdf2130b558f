#pragma once

#include "kinora/nn/module.h"

namespace kinora::nn {

/// (x - mean) / deviation * weight + bias over the last dim, in fp32 (Ba et al. 2016). Keys:
/// weight [dim], bias [dim].
class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t dim, double epsilon = 1e-5);
  /// x: [..., dim]. Returns x's type.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  Parameter weight;
  Parameter bias;

 private:
  double epsilon_;
};

}  // namespace kinora::nn
