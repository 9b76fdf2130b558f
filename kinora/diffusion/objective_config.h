#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/objective.h"

namespace kinora {
class Fields;
}

namespace kinora::diffusion {

/// The keys objective.*.
struct ObjectiveConfig {
  enum class Kind { kIddpm, kFlow };
  enum class TimestepSampling { kUniform, kImportance, kSpeedit };

  Kind kind = Kind::kIddpm;
  Prediction prediction = Prediction::kEps;                                  // iddpm
  int64_t timesteps = kDdpmTimesteps;                                        // iddpm
  BetaCurve betas = BetaCurve::kLinear;                                      // iddpm
  double beta_start = kDdpmBetaStart;                                        // iddpm
  double beta_end = kDdpmBetaEnd;                                            // iddpm
  double snr_shift = 1.0;                                                    // iddpm
  bool zero_terminal_snr = false;                                            // iddpm
  LossWeights weights;                                                       // iddpm
  NoiseShape noise;                                                          // iddpm
  TimestepSampling timestep_sampling = TimestepSampling::kUniform;           // iddpm
  RectifiedFlow::Times times = RectifiedFlow::Times::kLogitNormal;           // flow
  double logit_mean = 0.0;                                                   // flow
  double logit_std = 1.0;                                                    // flow
  double shift = 1.0;                                                        // flow
  bool shift_by_size = false;                                                // flow
  std::vector<double> shift_by_tokens = {};                                  // flow
  std::vector<int64_t> shift_tokens = {kFewTokens, kManyTokens};             // flow
  RectifiedFlow::TokenShift token_shift = RectifiedFlow::TokenShift::kFlux;  // flow
  int64_t shift_chunk = 0;                                                   // flow
  bool toward_data = false;                                                  // flow
  std::vector<double> levels = {0.0, 1.0};                                   // flow
};

void describe(Fields& fields, ObjectiveConfig& config);

/// The first and last beta of the chain: those of a chain of 1000 timesteps, times 1000 / T so that
/// the end holds about the same noise for every T (improved-diffusion).
[[nodiscard]] std::pair<double, double> scaled_ends(const ObjectiveConfig& config);

/// `learned_variance`: whether the model has the channels for it; for iddpm.
[[nodiscard]] Objective make_objective(const ObjectiveConfig& config, bool learned_variance);

}  // namespace kinora::diffusion
