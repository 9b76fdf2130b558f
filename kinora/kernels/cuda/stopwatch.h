#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// See random.h about launchers.
namespace kinora::kernels::cuda {

/// Two numbers in the device's memory: nanoseconds added up so far, and the device's clock when
/// the lap under way began.
struct StopwatchState {
  int64_t total = 0;
  int64_t began = 0;
};

/// Writes down the time at which the stream comes here.
/// @param state  [1], in/out, on the device.
[[nodiscard]] cudaError_t begin_lap(StopwatchState* state, cudaStream_t stream);

/// Adds the time since begin_lap to the total.
/// @param state  as above.
[[nodiscard]] cudaError_t end_lap(StopwatchState* state, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
