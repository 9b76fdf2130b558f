#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"

/// Files of named weights.
namespace kinora::checkpoint {

struct OutputOptions {
  /// Floating tensors become this; nothing: they stay what they are. Others always stay.
  std::optional<at::ScalarType> type = {};
  std::map<std::string, std::string> metadata = {};  ///< of a safetensors header
  /// A file that would hold more bytes of tensors becomes several; 0: always one.
  int64_t max_shard_bytes = 0;
};

/// Writes `path`, durably, with memory for a piece of a tensor, and returns its files. In shards
/// these are STEM-00001-of-00003.safetensors, ..., and STEM.safetensors.index.json, which names the
/// shard of every tensor, as Hugging Face's libraries have it. kIo, before anything is written,
/// where the disk has too little room.
std::vector<std::filesystem::path> write_weights(const std::filesystem::path& path,
                                                 const LateTensors& tensors,
                                                 const OutputOptions& options = {});

}  // namespace kinora::checkpoint
