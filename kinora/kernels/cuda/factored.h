#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/factored.h"

/// The launcher of the passes of Adafactor and CAME (rules of this folder: cuda/random.h). All
/// arrays, the table's own and the control block are in device memory, of any alignment.
namespace kinora::kernels::cuda {

/// kernels::run_pass over all items, in one launch, which can be recorded in a graph and serves
/// every step.
[[nodiscard]] cudaError_t run_pass(FactoredPass pass, const FactoredTable& table,
                                   const FactoredRule& rule, const StepControl* control,
                                   cudaStream_t stream);

}  // namespace kinora::kernels::cuda
