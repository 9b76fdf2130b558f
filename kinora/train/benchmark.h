#pragma once

#include <cstdint>
#include <string>

#include "kinora/train/run_config.h"

namespace kinora::train {

/// Speed of the training step, without the data pipeline.
struct StepBenchmark {
  std::string device;
  std::string kernels;
  double step_seconds = 0.0;  ///< median
  double samples_per_s = 0.0;
  double model_tflops = 0.0;  ///< TFLOP/s: 3 x 2 x multiply-accumulates of a forward pass
  double gemm_tflops = 0.0;   ///< what a large matrix product reaches on this device
  int64_t peak_memory = 0;    ///< bytes of tensors on the GPU; 0 on the CPU
  double last_loss = 0.0;     ///< to see that it computed
};

/// Times optimizer steps of the recipe on random inputs that lie in memory. Layers that start at
/// zero are randomised: products of zeros are faster than real ones.
[[nodiscard]] StepBenchmark benchmark_step(RunConfig config, int64_t warmup_steps,
                                           int64_t timed_steps);

}  // namespace kinora::train
