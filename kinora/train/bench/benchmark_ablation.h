#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/train/bench/benchmark_step.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// One configuration of an ablation.
struct AblationRow {
  std::string name;                     ///< "all on", or what is different: "kernels.adaln=off"
  std::optional<StepBenchmark> result;  ///< none: see the note
  std::string note;                     ///< why there is no result, or what to know about it
  double ratio = 0.0;                   ///< its speed to that of "all on"; 0 where one has none
};

/// Times the recipe's step with every switch kernels.* on auto, then each switched off alone, then
/// on the plain path, and with train.fp8 the other way round where that key is. Memory is given
/// back between them, and one that needs more than there is does not stop the rest. `report` gets
/// each row when it is known. Throws only what is wrong with the recipe itself.
std::vector<AblationRow> ablate(RunConfig config, const StepBenchmarkOptions& options,
                                const std::function<void(const AblationRow&)>& report);

}  // namespace kinora::train
