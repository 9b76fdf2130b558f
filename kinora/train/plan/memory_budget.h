#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "kinora/comm/group.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/plan/plan_search.h"
#include "kinora/train/run_config.h"

/// Runs in less memory than the GPU has, or than the recipe needs.
namespace kinora::train {

/// The recipe, whose model is resolved, with the fastest settings of search_plans() that fit
/// train.vram_budget, context and libraries included: itself where it fits. Says what it changes.
/// From here on the process's tensors cannot take more. The same on all ranks. Nothing without a
/// budget; kMemory, with the least that would do, where none fits; kConfig on a CPU.
[[nodiscard]] RunConfig within_budget(const RunConfig& config, at::Device device,
                                      const comm::Group& world);

/// The fastest settings of the same search that need less than `now`, the plan of `config`, of
/// whose tensors at least 3 %: by so much plans may err. Nothing where there are none.
[[nodiscard]] std::optional<PlanChoice> next_smaller(const RunConfig& config, at::Device device,
                                                     const MemoryPlan& now);

/// Of these settings those that need the least. kMemory where `config` cannot be planned.
[[nodiscard]] PlanChoice least_of(const RunConfig& config, at::Device device,
                                  const MemoryPlan& now);

/// The recipe with the settings that keep_plan() left in its run's directory; itself where there
/// are none, or with train.oom=stop. kIo where they cannot be read.
[[nodiscard]] RunConfig with_kept_plan(const RunConfig& config);
/// From now on the run has these, whoever goes on with it. kIo.
void keep_plan(const RunConfig& config);

}  // namespace kinora::train
