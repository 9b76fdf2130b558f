#pragma once

#include <cstdint>
#include <vector>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

namespace kinora::diffusion {

/// UniPC (Zhao et al. 2023): a multistep predictor whose next evaluation also corrects the step
/// that led to it, at no evaluation of its own (UniPCMultistepScheduler).
struct UniPc {
  int64_t order = 2;              ///< 1 to 3
  bool bh2 = true;                ///< B(h) = e^h - 1, else h (section 3.1)
  bool predict_x0 = true;         ///< integrates x_0, else eps, which `limit` does not reach
  bool lower_order_final = true;  ///< the last steps are of order ..., 2, 1
  std::vector<int64_t> without_corrector{};  ///< steps, from 0, that are not corrected
  Limit limit{};
};

/// Error kConfig for settings that do not go together.
[[nodiscard]] SolverPlan unipc(const NoiseLevels& levels, const UniPc& solver);

}  // namespace kinora::diffusion
