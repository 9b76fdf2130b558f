#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

struct DecodeBenchmarkOptions {
  std::string autoencoder;  ///< file or folder; empty: Stable Diffusion's, with random weights
  DeviceChoice device = DeviceChoice::kAuto;
  Precision precision = Precision::kBf16;
  int64_t batch = 1;
  int64_t height = 1024;  ///< pixels
  int64_t width = 1024;
  int64_t frames = 1;  ///< latent frames of a clip; 1: images
  int64_t memory_budget = 0;
  bool encode = false;
  int64_t warmup = 3;
  int64_t repeats = 10;
  bool profile = false;  ///< trace one more run, after the timed ones
};

/// Speed of decoding (encoding) one batch by an autoencoder.
struct DecodeBenchmark {
  std::string device;
  double seconds = 0.0;  ///< of a batch, median
  double images_per_s = 0.0;
  int64_t peak_memory = 0;  ///< bytes of tensors on a GPU, weights included; 0 on the CPU
  std::optional<device::GpuRecords> trace;  ///< of one run
};

/// Nothing is left in the device's memory. `ranks` divide the rows, and all call it. The errors of
/// pipelines::open_autoencoder().
[[nodiscard]] DecodeBenchmark benchmark_decode(const DecodeBenchmarkOptions& options,
                                               const comm::Group& ranks = {});

}  // namespace kinora::train
