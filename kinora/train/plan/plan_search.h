#pragma once

#include <string>
#include <vector>

#include "kinora/train/plan/gpu_facts.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/run_config.h"

/// Which settings make a run fit.
namespace kinora::train {

/// Settings of a recipe.
struct PlanChoice {
  std::vector<std::string> overrides;  ///< "train.recompute=mlp"; none: the recipe as it is
  RunConfig config;                    ///< with them
  MemoryPlan plan;
  double samples_per_s = 0.0;  ///< StepEstimate's; 0: not known
  double slowdown = 1.0;       ///< seconds for a sample, against the recipe's as it is

  /// The overrides in one line; "the recipe as it is" without.
  [[nodiscard]] std::string text() const;
};

/// The fastest `most` settings of train.recompute, train.micro_batch, on GPUs optim.offload
/// and optim.offload_weights (of recipes that freeze parameters finetune.offload) and, with several
/// ranks, parallel.* that fit the target, the fastest first; the recipe's other settings and its
/// global batch stay. By expected speed, where the GPU's is known, else by what they compute again.
/// `config.model` is resolved.
[[nodiscard]] std::vector<PlanChoice> search_plans(const RunConfig& config,
                                                   const PlanTarget& target, const GpuFacts& gpu,
                                                   size_t most);

/// Of the same settings those that need the least memory.
[[nodiscard]] PlanChoice smallest_plan(const RunConfig& config, const PlanTarget& target,
                                       const GpuFacts& gpu);

}  // namespace kinora::train
