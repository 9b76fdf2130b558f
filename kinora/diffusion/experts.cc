#include "kinora/diffusion/experts.h"

#include <utility>

#include "kinora/core/error.h"

namespace kinora::diffusion {

Experts::Experts(std::unique_ptr<Denoiser> high, std::unique_ptr<Denoiser> low, double below,
                 std::function<void(Expert)> bring)
    : high_(std::move(high)),
      low_(std::move(low)),
      below_(static_cast<float>(below)),
      bring_(std::move(bring)) {}

Prepared Experts::prepare(const at::Tensor& /*times*/, const Conditions& /*conditions*/) {
  last_.reset();
  return {};
}

at::Tensor Experts::predict(const at::Tensor& x_t, const at::Tensor& t,
                            const Conditions& conditions, const Pass& pass) {
  KINORA_CHECK(pass.time, kInternal, "[experts] the time of a pass must be known");
  const Expert which = static_cast<float>(*pass.time) < below_ ? Expert::kLow : Expert::kHigh;
  Denoiser& expert = which == Expert::kLow ? *low_ : *high_;
  if (bring_) {
    bring_(which);
  }
  if (std::exchange(last_, which) != which) {
    if (pass.cache != nullptr) {
      pass.cache->forget();
    }
    (void)expert.prepare(t.narrow(0, 0, 1), conditions);
  }
  return expert.forward(x_t, t, conditions, pass);
}

}  // namespace kinora::diffusion
