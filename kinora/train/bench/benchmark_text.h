#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kinora/device/gpu_profile.h"
#include "kinora/models/text_encoders/text_linear.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

struct TextBenchmarkOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  Precision precision = Precision::kBf16;
  std::optional<models::EightBit> eight_bits = std::nullopt;  ///< how the linears are stored
  /// Read the blocks from a file while they compute. It is written into this folder unless it is
  /// there; empty: the weights stay on the device.
  std::string stream_folder;
  int64_t layers = 24;
  int64_t captions = 256;
  int64_t least_tokens = 5;  ///< of a caption, which are drawn uniformly
  int64_t most_tokens = 300;
  int64_t warmup = 2;
  int64_t repeats = 5;
  bool profile = false;
};

/// Speed of encoding captions by T5-XXL's encoder (T5 1.1) with random weights.
struct TextBenchmark {
  std::string device;
  int64_t tokens = 0;
  double first_seconds = 0.0;  ///< of the first call, with what is chosen or read once
  double seconds = 0.0;        ///< of all captions, median
  double tokens_per_s = 0.0;
  double tflops = 0.0;              ///< of the linears, 1e12 a second
  int64_t peak_memory = 0;          ///< bytes of tensors on a GPU, weights included; 0 on the CPU
  double copy_bytes_per_s = 0.0;    ///< of pinned memory to the GPU; 0 unless streamed
  double stream_bytes_per_s = 0.0;  ///< weights of the blocks by the time of a call; likewise
  /// The mean magnitude of the states, and the first numbers of the first caption's last token: the
  /// peer of the same sizes on the same device has about the same.
  std::string checksum;
  std::optional<device::GpuRecords> trace;  ///< of one call
};

/// Nothing is left in the device's memory.
[[nodiscard]] TextBenchmark benchmark_text(const TextBenchmarkOptions& options);

}  // namespace kinora::train
