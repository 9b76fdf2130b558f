#include "kinora/pipelines/draw.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::pipelines {

at::Tensor draw(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                const SamplingConfig& config, const DrawRequest& request,
                at::IntArrayRef sample_shape,
                const std::function<DrawConditions(int64_t first, int64_t size)>& conditions_of,
                at::Device device, const std::function<void(double)>& progress) {
  KINORA_CHECK(request.count > 0 && request.batch > 0, kConfig,
               "[sample] count and batch must not be 0");
  const diffusion::Guidance guidance_of_all = config.guidance_of();
  diffusion::RecordedSampler recorded(denoiser, sampler, guidance_of_all, request.seed, device);
  std::vector<at::Tensor> results;
  for (int64_t done = 0; done < request.count; done += request.batch) {
    const int64_t batch = std::min(request.batch, request.count - done);
    const int64_t first = request.first_index + done;
    const DrawConditions given = conditions_of(first, batch);
    std::vector<int64_t> shape = {batch};
    shape.insert(shape.end(), sample_shape.begin(), sample_shape.end());
    const at::Tensor sample_index = at::arange(first, first + batch, at::kLong);
    if (request.graphs && request.count >= 2 * request.batch && batch == request.batch) {
      results.push_back(recorded.sample(shape, given.conditions, given.null, sample_index).cpu());
      if (progress) {
        progress(static_cast<double>(done + batch));
      }
      continue;
    }
    diffusion::Guidance guidance = guidance_of_all;
    guidance.null = given.null;
    const auto report = [&](const diffusion::SampleProgress& step) {
      if (progress) {
        progress(static_cast<double>(done) +
                 static_cast<double>(batch * step.step) / static_cast<double>(step.total));
      }
    };
    results.push_back(diffusion::sample(denoiser, sampler, shape, given.conditions, guidance,
                                        {.seed = request.seed, .sample_index = sample_index},
                                        device, report)
                          .cpu());
  }
  return at::cat(results);
}

}  // namespace kinora::pipelines
