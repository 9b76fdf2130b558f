#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"

namespace kinora::diffusion {

/// Of two models by noise level.
enum class Expert : uint8_t { kHigh, kLow };

/// Two denoisers of a flow by noise level (Wan 2.2): `low` where t is less than `below`, else
/// `high`. All samples of a batch have one t, which Pass::time says. A step cache is that of
/// `high`, and forgets what one has made when the other goes on; a run of each begins when it goes
/// on.
class Experts : public Denoiser {
 public:
  /// bring: has the weights of the one that predicts where both read theirs, and is called before
  /// each prediction; empty: each has its own.
  Experts(std::unique_ptr<Denoiser> high, std::unique_ptr<Denoiser> low, double below,
          std::function<void(Expert)> bring = {});

  /// Nothing, but whichever predicts first goes on.
  [[nodiscard]] Prepared prepare(const at::Tensor& times, const Conditions& conditions) override;
  [[nodiscard]] std::unique_ptr<StepCache> make_cache() override { return high_->make_cache(); }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const Conditions& conditions, const Pass& pass) override;

  std::unique_ptr<Denoiser> high_;
  std::unique_ptr<Denoiser> low_;
  float below_;  // as times are
  std::function<void(Expert)> bring_;
  std::optional<Expert> last_;  // that predicted last in the run
};

}  // namespace kinora::diffusion
