#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/checkpoint/training_state.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

/// Version 1 had whole roles, with one checksum a file; up to 2 all weights were in C order; up
/// to 3 masters and moments were fp32; up to 4 every parameter was whole; up to 5 every rank had
/// all blocks.
inline constexpr int64_t kManifestVersion = 6;
inline constexpr const char* kManifestName = "manifest.json";

/// The roles of the files with TrainingState::fp8, buffers and frozen.
inline constexpr const char* kFp8Role = "fp8";
inline constexpr const char* kBuffersRole = "buffers";
inline constexpr const char* kFrozenRole = "frozen";

/// What a rank writes of every bucket: of `count` equal parts number `index`.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

/// A file of a checkpoint: a part of all buckets in one role, the scales of fp8, buffers,
/// or frozen weights.
struct Shard {
  std::string file;
  std::string role;  ///< as optim::to_string, or one of the above
  Part part;
  /// Where ranks divided parameters (optim::Slot::box): whose boxes.
  Part box = {};
  /// Where they divided blocks (optim::Slot::stage): whose buckets. Those of no stage are the
  /// first's.
  Part stage = {};
  int64_t num_bytes = 0;
  /// io::Checksum of each chunk of the file; the last chunk may be shorter.
  int64_t chunk_bytes = 0;
  std::vector<std::string> checksums;

  [[nodiscard]] static int64_t num_chunks(int64_t num_bytes, int64_t chunk_bytes) {
    return num_bytes / chunk_bytes + (num_bytes % chunk_bytes != 0 ? 1 : 0);
  }
};

/// What manifest.json says.
struct Manifest {
  TrainingState state;  ///< without fp8, buffers and frozen
  /// Names, sizes and slots only; of the boxes of number 0; of all stages.
  std::vector<optim::Bucket> buckets;
  int64_t num_boxes = 1;   ///< ranks that divided parameters
  int64_t num_stages = 1;  ///< ranks that divided blocks
  std::vector<Shard> shards;
};

/// As the program that runs writes it.
[[nodiscard]] std::string to_json(const Manifest& manifest);

/// The manifest's list of shards alone, on its way between ranks.
[[nodiscard]] std::string to_json(const std::vector<Shard>& shards);
[[nodiscard]] std::vector<Shard> parse_shards(const std::string& text);

/// Its list of buckets alone, likewise.
[[nodiscard]] std::string to_json(const std::vector<optim::Bucket>& buckets);
[[nodiscard]] std::vector<optim::Bucket> parse_buckets(const std::string& text, int64_t num_boxes);

/// The stage of a bucket; 0 where it is of none.
[[nodiscard]] inline int64_t stage_of(const optim::Bucket& bucket) {
  return bucket.slots.empty() ? 0 : bucket.slots.front().stage.value_or(0);
}

/// Reads `checkpoint`/manifest.json. kDamaged, naming the file, for anything that does not fit; kIo
/// if it cannot be read, or a newer version wrote it.
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace kinora::checkpoint
