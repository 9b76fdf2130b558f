#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::pipelines {

/// A sample to draw: its noise is that of (seed, index), so that neither the samples beside it nor
/// their count change what it looks like.
struct SampleToDraw {
  uint64_t seed = 0;
  int64_t index = 0;
  double guidance = 1.0;  ///< scale; 1: none
};

/// Samples first, first + 1, ... of one seed and scale.
[[nodiscard]] std::vector<SampleToDraw> numbered_samples(int64_t first, int64_t count,
                                                         uint64_t seed, double guidance);

/// Samples to draw. They share the sampler, and of guidance all but its scale.
struct DrawRequest {
  std::vector<SampleToDraw> samples;
  int64_t batch = 64;  ///< samples computed at once
  /// Record the sampling loop as a CUDA graph where several batches of a size follow each other.
  bool graphs = false;
};

/// Conditions of a batch, on the device, and what is different in its unconditional prediction.
struct DrawConditions {
  diffusion::Conditions conditions;
  diffusion::Conditions null;
};

/// Draws samples: float32 [samples, *sample_shape] on the CPU. `conditions_of(first, size)`: those
/// of request.samples[first], ..., [first + size - 1]. `progress` is called with the number of
/// samples done, fractions included. kConfig for an empty request, or a scale beyond kMostGuidance.
[[nodiscard]] at::Tensor draw(
    diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler, const SamplingConfig& config,
    const DrawRequest& request, at::IntArrayRef sample_shape,
    const std::function<DrawConditions(int64_t first, int64_t size)>& conditions_of,
    at::Device device, const std::function<void(double)>& progress = {});

}  // namespace kinora::pipelines
