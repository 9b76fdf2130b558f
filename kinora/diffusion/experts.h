#pragma once

#include <memory>

#include "kinora/diffusion/denoiser.h"

namespace kinora::diffusion {

/// Two denoisers of a flow by noise level (Wan 2.2): `low` where t is less than `below`, else
/// `high`. All samples of a batch have one t.
class Experts : public Denoiser {
 public:
  Experts(std::unique_ptr<Denoiser> high, std::unique_ptr<Denoiser> low, double below)
      : high_(std::move(high)), low_(std::move(low)), below_(static_cast<float>(below)) {}

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const Conditions& conditions, const Pass& pass) override;

  std::unique_ptr<Denoiser> high_;
  std::unique_ptr<Denoiser> low_;
  float below_;  // as times are
};

}  // namespace kinora::diffusion
