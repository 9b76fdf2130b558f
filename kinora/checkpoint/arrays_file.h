#pragma once

#include <filesystem>
#include <vector>

#include "kinora/checkpoint/manifest.h"

/// Files of arrays that are the same on all ranks, one a role: scales of fp8, buffers, frozen
/// weights.
namespace kinora::checkpoint {

/// Writes `folder`/ROLE.safetensors: arrays on the CPU, contiguous. kIo.
[[nodiscard]] Shard write_arrays(const std::filesystem::path& folder, const char* role,
                                 const Arrays& arrays);

/// The file of a role as one of its manifest's; none if the checkpoint has none.
[[nodiscard]] std::vector<Shard> arrays_shards(const Manifest& manifest, const char* role);

/// Reads it; empty if there is none. Sizes and checksums were compared. kIo.
[[nodiscard]] Arrays read_arrays(const Manifest& manifest, const std::filesystem::path& checkpoint,
                                 const char* role);

}  // namespace kinora::checkpoint
