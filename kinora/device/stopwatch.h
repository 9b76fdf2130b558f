#pragma once

#include <ATen/core/Tensor.h>

/// How long a part of the device's work takes, step after step, without waiting for it.
namespace kinora::device {

/// Adds up laps. On a GPU they are of the current stream, by the device's clock: from when it comes
/// to begin() to when it comes to end(), in replays of a CUDA graph too. Each costs two kernels of
/// one thread (some microseconds). A build without nvcc measures nothing there. On the CPU it is
/// the host's clock.
class Stopwatch {
 public:
  explicit Stopwatch(at::Device device);

  void begin();
  void end();

  /// Nanoseconds so far: int64 [1] on the host, to be read when the current stream has come here.
  [[nodiscard]] at::Tensor total() const;

 private:
  at::Tensor state_;  // int64 [2]: kernels::cuda::StopwatchState
};

/// From here to the end of the scope.
class Lap {
 public:
  explicit Lap(Stopwatch& stopwatch) : stopwatch_(stopwatch) { stopwatch_.begin(); }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;
  ~Lap();

 private:
  Stopwatch& stopwatch_;
};

}  // namespace kinora::device
