#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kinora::inference {

/// What files of samples are.
enum class FileFormat : uint8_t {
  kUsual,  ///< png of images; of clips a folder of png frames, and webp
  kPng,    ///< of clips a folder of frames
  kWebp,   ///< lossless
  kGif,
  kMp4,  ///< of clips only
};

/// Error (kConfig) where samples of a model of clips, or of images, cannot be written so.
void check_format(FileFormat format, bool is_video);

/// Samples to write.
struct SampleFiles {
  std::filesystem::path folder;
  /// float32 on the CPU: pixels [B, 3 or 1, H, W] or clips [B, 3 or 1, T, H, W] in [-1, 1], or
  /// latents of other channels.
  at::Tensor samples;
  std::vector<std::optional<int64_t>> labels;  ///< [B]; nothing: not known
  double fps = 0.0;                            ///< of clips
  FileFormat format = FileFormat::kUsual;
};

/// Writes every sample by itself in its format: image-00000.png (with _class-N where the class is
/// known), clip-00000.webp, the frames in clip-00000/. And all together as a contact sheet,
/// grid.png: of a clip a row of its frames, of long clips 32 of them, evenly spaced. Latents go to
/// latents.safetensors. Returns what was written, in words.
std::string write_samples(const SampleFiles& files);

}  // namespace kinora::inference
