#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/guidance.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/pipelines/draw.h"

namespace kinora::pipelines {

/// Seconds that one evaluation of the denoiser takes, guidance included, for so many samples.
struct BatchCost {
  int64_t size = 0;
  double together = 0.0;  ///< in one batch
  double one_by_one = 0.0;

  /// "1.6 times ...", for the start of a drawing with sample.batch_invariant.
  [[nodiscard]] std::string describe() const;
};

/// Times both on noise at the sampler's first step: of a few evaluations the quickest, after some
/// that warm up. sample_shape: of one sample. conditions: of `size` samples.
[[nodiscard]] BatchCost measure_batch_cost(diffusion::Denoiser& denoiser,
                                           const diffusion::Sampler& sampler,
                                           const diffusion::Guidance& guidance,
                                           at::IntArrayRef sample_shape,
                                           const DrawConditions& conditions, int64_t size,
                                           at::Device device);

}  // namespace kinora::pipelines
