#include "kinora/pipelines/draw.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

/// What the samples of a request have in common.
struct Common {
  bool seed = true;
  bool guidance = true;
};

Common common_of(const std::vector<SampleToDraw>& samples) {
  const SampleToDraw& first = samples.front();
  Common common;
  for (const SampleToDraw& sample : samples) {
    KINORA_CHECK(sample.guidance >= 0.0 && sample.guidance <= kMostGuidance, kConfig,
                 "[sample] a scale of guidance must be between 0 and ", kMostGuidance, ", got ",
                 sample.guidance);
    common.seed = common.seed && sample.seed == first.seed;
    common.guidance = common.guidance && sample.guidance == first.guidance;
  }
  return common;
}

diffusion::SampleKey key_of(std::span<const SampleToDraw> samples, bool one_seed) {
  std::vector<int64_t> seeds;
  std::vector<int64_t> indices;
  for (const SampleToDraw& sample : samples) {
    seeds.push_back(static_cast<int64_t>(sample.seed));
    indices.push_back(sample.index);
  }
  return {.seed = one_seed ? ops::RandomSeed(samples.front().seed)
                           : ops::RandomSeed(at::tensor(seeds, at::kLong)),
          .sample_index = at::tensor(indices, at::kLong)};
}

diffusion::GuidanceScale scale_of(std::span<const SampleToDraw> samples, bool one_scale,
                                  at::Device device) {
  if (one_scale) {
    return samples.front().guidance;
  }
  std::vector<float> scales;
  for (const SampleToDraw& sample : samples) {
    scales.push_back(static_cast<float>(sample.guidance));
  }
  return diffusion::GuidanceScale(at::tensor(scales, at::kFloat).to(device));
}

}  // namespace

std::vector<SampleToDraw> numbered_samples(int64_t first, int64_t count, uint64_t seed,
                                           double guidance) {
  std::vector<SampleToDraw> samples;
  for (int64_t index = first; index < first + count; ++index) {
    samples.push_back({.seed = seed, .index = index, .guidance = guidance});
  }
  return samples;
}

at::Tensor draw(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                const SamplingConfig& config, const DrawRequest& request,
                at::IntArrayRef sample_shape,
                const std::function<DrawConditions(int64_t first, int64_t size)>& conditions_of,
                at::Device device, const std::function<void(double)>& progress) {
  const auto count = static_cast<int64_t>(request.samples.size());
  KINORA_CHECK(count > 0 && request.batch > 0, kConfig, "[sample] count and batch must not be 0");
  const Common common = common_of(request.samples);
  diffusion::RecordedSampler recorded(denoiser, sampler, device);
  std::vector<at::Tensor> results;
  for (int64_t done = 0; done < count; done += request.batch) {
    const int64_t batch = std::min(request.batch, count - done);
    const std::span<const SampleToDraw> samples(request.samples.data() + done,
                                                static_cast<size_t>(batch));
    const DrawConditions given = conditions_of(done, batch);
    std::vector<int64_t> shape = {batch};
    shape.insert(shape.end(), sample_shape.begin(), sample_shape.end());
    const diffusion::SampleKey key = key_of(samples, common.seed);
    diffusion::Guidance guidance = config.guidance_of();
    guidance.scale = scale_of(samples, common.guidance, device);
    guidance.null = given.null;
    if (request.graphs && count >= 2 * request.batch && batch == request.batch) {
      results.push_back(recorded.sample(shape, given.conditions, guidance, key).cpu());
      if (progress) {
        progress(static_cast<double>(done + batch));
      }
      continue;
    }
    const auto report = [&](const diffusion::SampleProgress& step) {
      if (progress) {
        progress(static_cast<double>(done) +
                 static_cast<double>(batch * step.step) / static_cast<double>(step.total));
      }
    };
    results.push_back(
        diffusion::sample(denoiser, sampler, shape, given.conditions, guidance, key, device, report)
            .cpu());
  }
  return at::cat(results);
}

}  // namespace kinora::pipelines
