#include "kinora/diffusion/experts.h"

#include <utility>

namespace kinora::diffusion {

Prepared Experts::prepare(const at::Tensor& times, const Conditions& conditions) {
  for (Denoiser* expert : {high_.get(), low_.get()}) {
    (void)expert->prepare(times.narrow(0, 0, 1), conditions);
  }
  return {};
}

at::Tensor Experts::predict(const at::Tensor& x_t, const at::Tensor& t,
                            const Conditions& conditions, const Pass& pass) {
  Denoiser& expert = t[0].item<float>() < below_ ? *low_ : *high_;
  if (std::exchange(last_, &expert) != &expert && pass.cache != nullptr) {
    pass.cache->forget();
  }
  return expert.forward(x_t, t, conditions, pass);
}

}  // namespace kinora::diffusion
