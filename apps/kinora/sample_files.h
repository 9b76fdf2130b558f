#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kinora::apps {

/// Samples to write.
struct SampleFiles {
  std::filesystem::path folder;
  /// float32 on the CPU: pixels [B, 3 or 1, H, W] or clips [B, 3 or 1, T, H, W] in [-1, 1], or
  /// latents of other channels.
  at::Tensor samples;
  std::vector<std::optional<int64_t>> labels;  ///< [B]; nothing: not known
  double fps = 0.0;                            ///< of clips
};

/// Writes every sample by itself, and pictures together as a grid: image-00000.png (with
/// _class-N where the class is known), clip-00000.webp and the frames in clip-00000/, grid.png, or
/// latents.safetensors. Returns what was written, in words.
std::string write_samples(const SampleFiles& files);

}  // namespace kinora::apps
