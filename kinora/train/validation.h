#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/source.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/objective.h"
#include "kinora/models/model_config.h"
#include "kinora/parallel/mesh.h"
#include "kinora/train/encode_stage.h"
#include "kinora/train/micro_batch.h"

namespace kinora::train {

struct ValidationLoss {
  double mean = 0.0;
  std::vector<double> bands;  ///< mean of each equal band of t, cleanest first
};

/// The loss (mean squared error of the prediction) on a fixed set of (sample, t, noise), so that
/// its changes come from the weights alone. Times are spread evenly over every band.
class Validation {
 public:
  /// Loads the samples now, of latents that are drawn the means. `micro_batch`: how many are
  /// computed at once.
  Validation(const data::Source& held_out, const data::SampleSize& size, const EncodeStage& latents,
             const models::ModelConfig& model, int64_t num_bands, int64_t micro_batch,
             uint64_t seed);

  /// The ranks share the work, each part of it done by a group that divides its samples; each rank
  /// calls it and gets the same.
  [[nodiscard]] ValidationLoss evaluate(diffusion::Denoiser& denoiser,
                                        const diffusion::Objective& objective, at::Device device,
                                        const parallel::Mesh& mesh = {}) const;

 private:
  /// Of samples [first, first + size): mean squared errors, fp32 [size] on the CPU.
  [[nodiscard]] at::Tensor errors(diffusion::Denoiser& denoiser,
                                  const diffusion::Objective& objective, at::Device device,
                                  int64_t first, int64_t size) const;

  MicroBatch samples_;  // all n
  int64_t num_bands_;
  int64_t micro_batch_;
  uint64_t seed_;
};

/// What a denoiser is shown of `x0`, samples first, first + 1, ... of a validation set of n: each
/// at its time, with its noise.
[[nodiscard]] diffusion::NoisedBatch validation_batch(const diffusion::Objective& objective,
                                                      const at::Tensor& x0, int64_t first,
                                                      int64_t n, int64_t num_bands, uint64_t seed);

/// The time of sample i of n in equal bands over `range`: sample i lies in band i % num_bands.
[[nodiscard]] double validation_time(int64_t i, int64_t n, int64_t num_bands,
                                     const std::pair<double, double>& range);

}  // namespace kinora::train
