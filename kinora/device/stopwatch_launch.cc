#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/device/stopwatch_launch.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/device/dry_run.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/kernels/cuda/stopwatch.h"

namespace kinora::device::cuda {
namespace {

kernels::cuda::StopwatchState* stopwatch_state(const at::Tensor& state) {
  return reinterpret_cast<kernels::cuda::StopwatchState*>(state.data_ptr<int64_t>());
}

}  // namespace

bool has_stopwatch() {
  return kernels::cuda::has_cuda_kernels();
}

void begin_lap(const at::Tensor& state) {
  if (in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(state.device());
  KINORA_CUDA_CHECK(
      kernels::cuda::begin_lap(stopwatch_state(state), c10::cuda::getCurrentCUDAStream()));
}

void end_lap(const at::Tensor& state) {
  if (in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(state.device());
  KINORA_CUDA_CHECK(
      kernels::cuda::end_lap(stopwatch_state(state), c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::device::cuda
