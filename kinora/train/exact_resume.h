#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "kinora/checkpoint/training_state.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/train/run_config.h"

/// What a run's bits depend on besides arrays and counters: the algorithms of the libraries, and
/// the scales of fp8.
namespace kinora::train {

/// Sets `state`'s pinned (of a deterministic run) and fp8 (of a run in fp8) to what is now, else to
/// nothing. `kernels` are the fast path's; null: the plain path. Waits for the device.
void keep_for_resume(const RunConfig& config, at::Device device, const ops::BlockKernels* kernels,
                     checkpoint::TrainingState& state);

/// Gives a new run's kernels what keep_for_resume() kept. Says what cannot be as it was: versions
/// that differ, algorithms that cannot be taken over, scales that are missing. kIo where a pinned
/// algorithm cannot be read; then nothing is changed.
void resume_exactly(const RunConfig& config, at::Device device,
                    const checkpoint::TrainingState& state, ops::BlockKernels* kernels);

/// "cuDNN was 91300 and is now 91400" for each name whose version differs; "none" where there is
/// none.
[[nodiscard]] std::vector<std::string> version_changes(
    const std::map<std::string, std::string>& before,
    const std::map<std::string, std::string>& after);

}  // namespace kinora::train
