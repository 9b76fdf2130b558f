#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kinora/device/gpu_profile.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

struct PipelineBenchmarkOptions {
  int64_t batch = 1;            ///< pictures at once
  int64_t caption_tokens = 20;  ///< of each caption; the negative one has a token, as an empty text
  int64_t text_layers = 24;     ///< of T5-XXL's encoder, which has 24
  int64_t warmup = 2;           ///< runs before timing
  int64_t repeats = 5;          ///< timed runs
  bool profile = false;         ///< trace one more run, after the timed ones
};

/// Speed of drawing pictures from the tokens of captions to pixels on the host, with everything
/// loaded: T5-XXL's encoder, all steps of a recipe's model, Stable Diffusion's autoencoder.
struct PipelineBenchmark {
  std::string device;
  double seconds = 0.0;         ///< of a run, median
  double encode_seconds = 0.0;  ///< of its stages, each waited for in further runs
  double sample_seconds = 0.0;
  double decode_seconds = 0.0;
  int64_t steps = 0;
  double guidance = 1.0;
  bool graphs = false;      ///< whether the loop of steps is replayed as a CUDA graph
  int64_t peak_memory = 0;  ///< bytes of tensors on a GPU, weights included; 0 on the CPU
  std::optional<device::GpuRecords> trace;  ///< of one run
};

/// Weights are random, the encoder's and the autoencoder's in config.precision, too. Nothing is
/// left in the device's memory. kConfig where the model does not draw pictures from T5-XXL's states
/// of so many tokens as latents of Stable Diffusion's autoencoder.
[[nodiscard]] PipelineBenchmark benchmark_pipeline(RunConfig config,
                                                   const PipelineBenchmarkOptions& options);

}  // namespace kinora::train
