#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/train/boost/booster.h"

namespace kinora::ops {
class BlockKernels;
}

namespace kinora::train {

/// Where ranks divide the blocks. All are borrowed.
struct PipelineSettings {
  parallel::PipelineLinks* links = nullptr;  ///< null: all blocks are here
  parallel::PipelineSchedule schedule = parallel::PipelineSchedule::k1F1B;
  ops::BlockKernels* kernels = nullptr;  ///< kZeroBubble: of the fast path
};

/// A micro-batch on its way through a stage of this rank.
struct StageForward {
  size_t micro_batch = 0;
  int64_t chunk = 0;  ///< the rank's stage number
  parallel::StagePass& stage;
  diffusion::Pass pass;  ///< of `stage`
};

/// Forward and backward of the micro-batches of a step by the stages of this rank, in the order of
/// the schedule; between Boosted::begin_step() and end_step(). All ranks of the links call it.
/// @param shares   [micro-batches]: of the losses in that of the step.
/// @param forward  computes a stage, and returns the loss where that is the last one.
void run_pipeline(Boosted& boosted, const PipelineSettings& settings,
                  const std::vector<double>& shares,
                  const std::function<at::Tensor(const StageForward&)>& forward);

}  // namespace kinora::train
