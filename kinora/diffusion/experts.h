#pragma once

#include <memory>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"

namespace kinora::diffusion {

/// Two denoisers of a flow by noise level (Wan 2.2): `low` where t is less than `below`, else
/// `high`. All samples of a batch have one t. A step cache is that of `high`, and forgets what one
/// has made when the other goes on.
class Experts : public Denoiser {
 public:
  Experts(std::unique_ptr<Denoiser> high, std::unique_ptr<Denoiser> low, double below)
      : high_(std::move(high)), low_(std::move(low)), below_(static_cast<float>(below)) {}

  /// Nothing, but a run of both begins.
  [[nodiscard]] Prepared prepare(const at::Tensor& times, const Conditions& conditions) override;
  [[nodiscard]] std::unique_ptr<StepCache> make_cache() override { return high_->make_cache(); }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const Conditions& conditions, const Pass& pass) override;

  std::unique_ptr<Denoiser> high_;
  std::unique_ptr<Denoiser> low_;
  float below_;                     // as times are
  const Denoiser* last_ = nullptr;  // that predicted last
};

}  // namespace kinora::diffusion
