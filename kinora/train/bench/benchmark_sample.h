#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/pipelines/sampling_ranks.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

struct SampleBenchmarkOptions {
  int64_t batch = 64;    ///< samples drawn at once, on all ranks together
  int64_t warmup = 2;    ///< runs before timing
  int64_t repeats = 5;   ///< timed runs of all steps
  bool profile = false;  ///< trace one more run, after the timed ones
  pipelines::SamplingRanks ranks = {};
};

/// Speed of drawing one batch of samples: all steps, from noise to what an autoencoder would get.
struct SampleBenchmark {
  std::string device;
  std::string kernels;
  std::string sampler;  ///< "ddim, 50 steps, guidance 4"
  std::string ranks;    ///< how they share the work; empty: there is one
  std::string weights;  ///< "random weights", or checkpoint.init_from and what is not from there
  std::string unit;     ///< "images" or "clips"
  int64_t steps = 0;
  double seconds = 0.0;  ///< of a run, median, of the slowest rank
  double samples_per_s = 0.0;
  /// TFLOP/s a rank: 2 x multiply-accumulates of the forward passes; none where guidance is on for
  /// a part of the steps only, or a cache leaves out some.
  std::optional<double> model_tflops;
  int64_t peak_memory = 0;                  ///< bytes of tensors on a GPU, the most; 0 on the CPU
  std::optional<device::GpuRecords> trace;  ///< of one run
  /// With sample.cache or sample.patches: what it left out on this rank, and the same without it.
  /// With random weights the error says nothing of a trained model.
  struct Cache {
    std::string key;
    std::string use;
    double seconds_without = 0.0;
    double relative_error = 0.0;  ///< of the samples
  };
  std::optional<Cache> cache;
};

/// Times sampling as config.sample says, with random texts, and random weights unless
/// checkpoint.init_from names some. Nothing is left in the device's memory. With several ranks all
/// call it, and a trace is of this one. kConfig if sampler and objective do not fit, or the ranks
/// do not divide; kIo where weights do not fit the model.
[[nodiscard]] SampleBenchmark benchmark_sample(const RunConfig& config,
                                               const SampleBenchmarkOptions& options,
                                               const comm::Group& world = {});

}  // namespace kinora::train
