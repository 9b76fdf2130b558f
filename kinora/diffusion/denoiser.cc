#include "kinora/diffusion/denoiser.h"

namespace kinora::diffusion {

at::Tensor Denoiser::prepare(const at::Tensor& /*times*/, const Conditions& /*conditions*/) {
  return {};
}

}  // namespace kinora::diffusion
