#include "kinora/diffusion/denoiser.h"

#include "kinora/diffusion/step_cache.h"

namespace kinora::diffusion {

Prepared Prepared::at_time(int64_t s) const {
  return {of_times.defined() ? of_times.select(0, s) : of_times, of_texts, of_image_prompts};
}

Prepared Denoiser::prepare(const at::Tensor& /*times*/, const Conditions& /*conditions*/) {
  return {};
}

std::unique_ptr<StepCache> Denoiser::make_cache() {
  return nullptr;
}

}  // namespace kinora::diffusion
