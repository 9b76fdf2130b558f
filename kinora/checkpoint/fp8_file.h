#pragma once

#include <filesystem>
#include <optional>

#include "kinora/checkpoint/manifest.h"
#include "kinora/ops/fp8_state.h"

/// The file with the scales of fp8, which are small and the same on all ranks.
namespace kinora::checkpoint {

/// Writes it into `folder`. kIo.
[[nodiscard]] Shard write_fp8(const std::filesystem::path& folder, const ops::Fp8State& state);

/// Reads it; nothing if the checkpoint has none. Sizes and checksums were compared. kIo for arrays
/// that are no scales.
[[nodiscard]] std::optional<ops::Fp8State> read_fp8(const Manifest& manifest,
                                                    const std::filesystem::path& checkpoint);

}  // namespace kinora::checkpoint
