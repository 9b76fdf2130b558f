#pragma once

#include <cstdlib>

#include "kinora/device/device.h"
#include "kinora/ops/block_kernels.h"

namespace kinora::ops {

/// Begins to compute deterministically; algorithms are neither taken from nor left to other runs.
/// False where there is no GPU that has the kernels.
inline bool begin_on_gpu() {
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  device::configure_computation(0, true);
  return device::best_device().is_cuda() &&
         BlockKernels::worthwhile(at::Device(at::kCUDA, 0), at::kBFloat16);
}

}  // namespace kinora::ops
