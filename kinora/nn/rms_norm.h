#pragma once

#include "kinora/nn/module.h"

namespace kinora::nn {

/// x / rms(x) * weight over the last dim, in fp32 (Zhang and Sennrich 2019). Key: weight [dim].
class RmsNorm : public Module {
 public:
  explicit RmsNorm(int64_t dim, double epsilon = 1e-6);
  /// x: [..., dim]. Returns x's type.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  [[nodiscard]] double epsilon() const { return epsilon_; }

  Parameter weight;

 private:
  double epsilon_;
};

}  // namespace kinora::nn
