#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

#include "kinora/io/jsonl.h"

/// What --judge says of each sample, kept beside the samples: so a drawing that was stopped knows
/// at its end what it said before.
namespace kinora::apps {

/// The verdicts of one rank. A sample's is written before its files.
class VerdictLog {
 public:
  /// folder: inference/sample_folder.h. kIo.
  VerdictLog(const std::filesystem::path& folder, int64_t rank);

  void add(int64_t sample, bool is_right);

 private:
  io::JsonlWriter file_;
};

/// Those of all ranks, by sample. kIo.
[[nodiscard]] std::map<int64_t, bool> read_verdicts(const std::filesystem::path& folder);

}  // namespace kinora::apps
