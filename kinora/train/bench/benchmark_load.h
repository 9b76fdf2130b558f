#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "kinora/inference/recipe.h"

namespace kinora::train {

struct LoadBenchmarkOptions {
  std::filesystem::path folder;  ///< a pipeline's (pipelines::find_pipeline)
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t repeats = 3;  ///< of reading and of loading, by turns
};

/// Speed of loading a pipeline's folder as `kinora sample` does: text encoder, transformer and
/// autoencoder, in the types of their weights.
struct LoadBenchmark {
  std::string device;
  int64_t bytes = 0;  ///< of the files of weights
  /// Of reading these bytes by several threads and copying them to the device, with nothing else
  /// done: what loading cannot be faster than. Median.
  double read_seconds = 0.0;
  double seconds = 0.0;       ///< of loading everything, median
  double text_seconds = 0.0;  ///< of its parts, of the same run each
  double transformer_seconds = 0.0;
  double autoencoder_seconds = 0.0;
  int64_t peak_memory = 0;  ///< bytes of tensors on a GPU; 0 on the CPU
};

/// The files should be in the page cache: all are read once before. Nothing is left in the device's
/// memory. kConfig where the folder has no pipeline; the errors of loading it.
[[nodiscard]] LoadBenchmark benchmark_load(const LoadBenchmarkOptions& options);

}  // namespace kinora::train
