#include "kinora/parallel/guidance_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace kinora::parallel {

GuidanceParallel::GuidanceParallel(diffusion::Denoiser& denoiser, comm::Group group)
    : denoiser_(denoiser), group_(std::move(group)) {}

at::Tensor GuidanceParallel::own(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.size(0) % group_.size() != 0) {
    return tensor;
  }
  const int64_t rows = tensor.size(0) / group_.size();
  return tensor.narrow(0, group_.rank() * rows, rows);
}

diffusion::Conditions GuidanceParallel::own(const diffusion::Conditions& conditions) const {
  diffusion::Conditions part;
  for (const diffusion::NamedCondition& condition : diffusion::kConditions) {
    part.*condition.tensor = own(conditions.*condition.tensor);
  }
  return part;
}

diffusion::Prepared GuidanceParallel::prepare(const at::Tensor& times,
                                              const diffusion::Conditions& conditions) {
  return denoiser_.prepare(times, own(conditions));
}

std::unique_ptr<diffusion::StepCache> GuidanceParallel::make_cache() {
  std::unique_ptr<diffusion::StepCache> cache = denoiser_.make_cache();
  if (cache && group_.size() > 1) {
    cache->decide_together([group = group_](const at::Tensor& number) {
      group.all_reduce(number, comm::Reduction::kMax);
    });
  }
  return cache;
}

at::Tensor GuidanceParallel::predict(const at::Tensor& x_t, const at::Tensor& t,
                                     const diffusion::Conditions& conditions,
                                     const diffusion::Pass& pass) {
  const at::NoGradGuard no_grad;
  // What was prepared is of this part already.
  at::Tensor prediction = denoiser_.forward(own(x_t), own(t), own(conditions), pass).contiguous();
  if (group_.size() == 1 || x_t.size(0) % group_.size() != 0) {
    return prediction;
  }
  std::vector<int64_t> shape = prediction.sizes().vec();
  shape[0] *= group_.size();
  at::Tensor all = at::empty(shape, prediction.options());
  group_.all_gather(all, prediction);
  return all;
}

}  // namespace kinora::parallel
