#pragma once

#include <cstdint>
#include <filesystem>

#include "kinora/checkpoint/weights_output.h"

namespace kinora::pipelines {

/// Whether `path` is of an autoencoder alone: by the class in config.json, or by its names.
[[nodiscard]] bool is_autoencoder(const std::filesystem::path& path);

/// Writes what open_autoencoder() reads of `path` as a folder of diffusers, and returns how many
/// tensors that are: keys of today, config.json as it was or, of an AutoencoderKL or a VQModel,
/// from its shapes. kIo, kConfig.
int64_t write_autoencoder(const std::filesystem::path& path, const std::filesystem::path& folder,
                          const checkpoint::OutputOptions& options);

/// The same of an AutoencoderKL or a VQModel as one file with CompVis' keys, which says nothing of
/// how latents are scaled. kConfig for others, and for norms of other than 32 groups.
int64_t write_compvis_autoencoder(const std::filesystem::path& path,
                                  const std::filesystem::path& file,
                                  const checkpoint::OutputOptions& options);

}  // namespace kinora::pipelines
