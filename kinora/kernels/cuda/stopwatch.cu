// When a stream comes to a place in its work, by the device's own clock.
//
// One thread each reads %globaltimer (nanoseconds, the same for all multiprocessors) in the order
// of the stream. Unlike an event such a reading keeps its place when a CUDA graph is replayed many
// times before the host looks, and adds up without it.

#include "kinora/kernels/cuda/stopwatch.h"

namespace kinora::kernels::cuda {
namespace {

__device__ int64_t nanoseconds() {
  uint64_t time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return static_cast<int64_t>(time);
}

__global__ void begin_lap_kernel(StopwatchState* state) {
  state->began = nanoseconds();
}

__global__ void end_lap_kernel(StopwatchState* state) {
  state->total += nanoseconds() - state->began;
}

}  // namespace

cudaError_t begin_lap(StopwatchState* state, cudaStream_t stream) {
  begin_lap_kernel<<<1, 1, 0, stream>>>(state);
  return cudaGetLastError();
}

cudaError_t end_lap(StopwatchState* state, cudaStream_t stream) {
  end_lap_kernel<<<1, 1, 0, stream>>>(state);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
