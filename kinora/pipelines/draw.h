#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::pipelines {

/// Samples to draw. Sample i has the noise of (seed, i), so that neither the batch size nor the
/// count changes what it looks like.
struct DrawRequest {
  int64_t count = 1;
  int64_t first_index = 0;  ///< number of the first sample
  int64_t batch = 64;       ///< samples computed at once
  uint64_t seed = 0;
  /// Record the sampling loop as a CUDA graph where several batches of a size follow each other.
  bool graphs = false;
};

/// Conditions of a batch, on the device, and what is different in its unconditional prediction.
struct DrawConditions {
  diffusion::Conditions conditions;
  diffusion::Conditions null;
};

/// Draws samples: float32 [count, *sample_shape] on the CPU. `conditions_of(first, size)`: those of
/// samples first, ..., first + size - 1. `progress` is called with the number of samples done,
/// fractions included. kConfig for an empty request.
[[nodiscard]] at::Tensor draw(
    diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler, const SamplingConfig& config,
    const DrawRequest& request, at::IntArrayRef sample_shape,
    const std::function<DrawConditions(int64_t first, int64_t size)>& conditions_of,
    at::Device device, const std::function<void(double)>& progress = {});

}  // namespace kinora::pipelines
