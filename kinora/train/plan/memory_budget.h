#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/train/run_config.h"

/// Runs in less memory than the GPU has, or than the recipe needs.
namespace kinora::train {

/// The recipe, whose model is resolved, with the fastest settings of search_plans() that fit
/// train.vram_budget, context and libraries included: itself where it fits. Says what it changes.
/// From here on the process's tensors cannot take more. The same on all ranks. Nothing without a
/// budget; kMemory, with the least that would do, where none fits; kConfig on a CPU.
[[nodiscard]] RunConfig within_budget(const RunConfig& config, at::Device device,
                                      const comm::Group& world);

}  // namespace kinora::train
