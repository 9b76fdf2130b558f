#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/io/image.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::pipelines {

/// The images to draw: image i has class classes[i % classes.size()] and the noise of (seed, i), so
/// that neither the batch size nor the count changes what image i looks like.
struct ClassToImageRequest {
  std::vector<int64_t> classes;  ///< each in [0, num_classes)
  int64_t count = 1;
  int64_t first_index = 0;  ///< number of the first image
  int64_t batch = 64;       ///< images computed at once
  uint64_t seed = 0;
  /// Record the sampling loop as a CUDA graph where several batches of a size follow each other.
  bool graphs = false;
};

/// Draws samples: float32 [count, C, H, W] on the CPU, C, H, W the model's input.
/// `progress` is called with the number of images done, fractions included.
[[nodiscard]] at::Tensor sample_classes(
    diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler, const SamplingConfig& config,
    const ClassToImageRequest& request, at::IntArrayRef sample_shape, int64_t null_class,
    at::Device device, const std::function<void(double)>& progress = {});

/// Pixels in [-1, 1], float32 [B, 3 or 1, H, W], as images; values outside are clipped.
[[nodiscard]] std::vector<io::Image> to_images(const at::Tensor& pixels);

}  // namespace kinora::pipelines
