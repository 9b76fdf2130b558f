#include "kinora/diffusion/experts.h"

namespace kinora::diffusion {

at::Tensor Experts::predict(const at::Tensor& x_t, const at::Tensor& t,
                            const Conditions& conditions, const Pass& pass) {
  Denoiser& expert = t[0].item<float>() < below_ ? *low_ : *high_;
  return expert.forward(x_t, t, conditions, pass);
}

}  // namespace kinora::diffusion
