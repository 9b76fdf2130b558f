#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/device/stopwatch_launch.h"

namespace kinora::device::cuda {

bool has_stopwatch() {
  return false;
}

void begin_lap(const at::Tensor& /*state*/) {
  KINORA_UNREACHABLE("[stopwatch] a CPU-only build was asked to launch a CUDA kernel");
}

void end_lap(const at::Tensor& /*state*/) {
  KINORA_UNREACHABLE("[stopwatch] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace kinora::device::cuda
