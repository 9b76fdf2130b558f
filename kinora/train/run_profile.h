#pragma once

#include <cstdint>
#include <optional>

#include "kinora/device/gpu_trace.h"
#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"

namespace kinora::train {

/// Traces the steps of train.profile_steps on a GPU; every rank writes a file.
class RunProfile : public RunObserver {
 public:
  /// Borrows the run.
  explicit RunProfile(const Run& run) : run_(run) {}

  void run_begins(int64_t step) override;
  void before_step(int64_t step) override;
  void run_ended(int64_t step) override;

 private:
  void end_trace(int64_t step);

  const Run& run_;
  std::optional<device::GpuTrace> trace_;
};

}  // namespace kinora::train
