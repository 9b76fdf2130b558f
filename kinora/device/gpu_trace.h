#pragma once

#include <memory>

#include "kinora/device/gpu_profile.h"

namespace kinora::device {

/// Records what all GPUs of the process do, kernels inside of CUDA graphs too, and which calls made
/// the host wait, by CUPTI's activity interface. Its library is loaded by start(): programs that
/// trace nothing need none. Tracing slows the device by some percent, launches more; nothing is
/// slower before start() and after stop().
class GpuTrace {
 public:
  GpuTrace();
  /// Ends a trace that runs; its records are lost.
  ~GpuTrace();
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  /// Waits for the device, then records. kCuda where CUPTI cannot be had or refuses; kInternal if
  /// a trace runs: there can be one at a time in a process.
  void start();

  /// Ends the trace, then waits for the device, so that the work enqueued is in it and this wait is
  /// not. kInternal if none runs.
  [[nodiscard]] GpuRecords stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::device
