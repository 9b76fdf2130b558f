#pragma once

#include <cstdint>
#include <filesystem>

#include "kinora/checkpoint/weights_output.h"

namespace kinora::pipelines {

/// Whether `path` is of an autoencoder alone: by the class in config.json, or by its names.
[[nodiscard]] bool is_autoencoder(const std::filesystem::path& path);

/// Writes what open_autoencoder() reads of `path` as a folder of diffusers, and returns how many
/// tensors that are: keys of today, config.json as it was or, of an AutoencoderKL, from its shapes.
/// kIo, kConfig.
int64_t write_autoencoder(const std::filesystem::path& path, const std::filesystem::path& folder,
                          const checkpoint::OutputOptions& options);

}  // namespace kinora::pipelines
