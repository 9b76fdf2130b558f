#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

inline constexpr int64_t kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

/// The role of the file with TrainingState::fp8.
inline constexpr const char* kFp8Role = "fp8";

/// A file of a checkpoint: all buckets of one role, or the scales of fp8.
struct Shard {
  std::string file;
  std::string role;  ///< as optim::to_string, or kFp8Role
  int64_t num_bytes = 0;
  std::string checksum;  ///< io::Checksum of the whole file
};

/// What manifest.json says.
struct Manifest {
  TrainingState state;  ///< without fp8
  /// Names, sizes and slots only.
  std::vector<optim::Bucket> buckets;
  std::vector<Shard> shards;
};

[[nodiscard]] std::string to_json(const Manifest& manifest);

/// Reads `checkpoint`/manifest.json. kIo, naming the file, for anything that does not fit.
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace kinora::checkpoint
