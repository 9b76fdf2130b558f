#pragma once

#include <cstdint>

#include "kinora/diffusion/objective.h"

namespace kinora {
class Fields;
}

namespace kinora::diffusion {

/// The keys objective.*.
struct ObjectiveConfig {
  enum class Kind { kIddpm, kFlow };
  enum class TimestepSampling { kUniform, kImportance };

  Kind kind = Kind::kIddpm;
  int64_t timesteps = kDdpmTimesteps;                               // iddpm
  TimestepSampling timestep_sampling = TimestepSampling::kUniform;  // iddpm
  RectifiedFlow::Times times = RectifiedFlow::Times::kLogitNormal;  // flow
  double logit_mean = 0.0;                                          // flow
  double logit_std = 1.0;                                           // flow
  double shift = 1.0;                                               // flow
  bool shift_by_size = false;                                       // flow
  bool toward_data = false;                                         // flow
};

void describe(Fields& fields, ObjectiveConfig& config);

/// `learned_variance`: whether the model has the channels for it; for iddpm.
[[nodiscard]] Objective make_objective(const ObjectiveConfig& config, bool learned_variance);

}  // namespace kinora::diffusion
