#pragma once

#include <ATen/core/Tensor.h>

/// The kernels of a Stopwatch on torch's current stream, for stopwatch.cc only. stopwatch_launch.cc
/// in builds with GPU support, no_stopwatch_launch.cc in CPU-only ones.
namespace kinora::device::cuda {

/// Whether they can run; without them nothing is measured.
[[nodiscard]] bool has_stopwatch();

/// @param state  int64 [2]: kernels::cuda::StopwatchState.
void begin_lap(const at::Tensor& state);
void end_lap(const at::Tensor& state);

}  // namespace kinora::device::cuda
