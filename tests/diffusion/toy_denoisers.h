#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "kinora/diffusion/denoiser.h"

/// Denoisers whose best prediction is known in closed form.
namespace kinora::diffusion {

/// Data are N(mean, std^2) in every element.
struct GaussianData {
  double mean = 0.3;
  double std = 0.5;
};

/// [B] -> [B, 1, 1, 1].
inline at::Tensor spread(const at::Tensor& t) {
  return t.view({-1, 1, 1, 1});
}

/// E[eps | x_t] where alpha-bar is that of the VP-SDE with beta from 0.1 to 20 (Song et al. 2021b,
/// eq. 33), close to the linear schedule's; and 0.8 sin(2 x + 5 t / 1000) as variance.
class ToyEps : public Denoiser {
 public:
  explicit ToyEps(bool learned_variance, GaussianData data = {})
      : learned_variance_(learned_variance), data_(data) {}

  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions& /*conditions*/,
                     const Pass& /*pass*/) override {
    const at::Tensor u = spread(t) / 1000.0;
    const at::Tensor alpha_bar = (-(0.1 * u + 9.95 * u * u)).exp();
    const at::Tensor eps = (x_t - alpha_bar.sqrt() * data_.mean) * (1.0 - alpha_bar).sqrt() /
                           (alpha_bar * (data_.std * data_.std) + 1.0 - alpha_bar);
    return learned_variance_ ? at::cat({eps, 0.8 * (2.0 * x_t + 5.0 * u).sin()}, 1) : eps;
  }

 private:
  bool learned_variance_;
  GaussianData data_;
};

/// E[noise - x_0 | x_t] for a rectified flow.
class ToyVelocity : public Denoiser {
 public:
  explicit ToyVelocity(GaussianData data = {}) : data_(data) {}

  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions& /*conditions*/,
                     const Pass& /*pass*/) override {
    const at::Tensor time = spread(t);
    const at::Tensor rest = 1.0 - time;
    const double variance = data_.std * data_.std;
    const at::Tensor slope = (time - rest * variance) / (rest * rest * variance + time * time);
    return slope * (x_t - rest * data_.mean) - data_.mean;
  }

 private:
  GaussianData data_;
};

}  // namespace kinora::diffusion
