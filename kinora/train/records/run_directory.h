#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kinora/io/file_lock.h"

namespace kinora::train {

/// What to do about what a run directory already holds.
struct Resume {
  enum class Mode {
    kNever,  ///< the directory must be new or empty
    kAuto,   ///< go on from the newest whole checkpoint, if there is one
    kPath,   ///< go on from `checkpoint`
  };
  Mode mode = Mode::kNever;
  std::filesystem::path checkpoint;

  /// "never", "auto", or a path.
  [[nodiscard]] static Resume parse(const std::string& text);
};

/// The folder of one run (docs/configuration.md): config.yaml, log.jsonl, state.json, events.*,
/// samples/, checkpoints/, requests/, tokenizer/. Locked against a second process for as long as
/// this object lives.
class RunDirectory {
 public:
  /// Creates the folder. kConfig if it holds files and no run, or a run and `resume` is kNever; kIo
  /// if it cannot be made or another process trains in it.
  RunDirectory(std::filesystem::path path, const Resume& resume);
  /// The names alone, for a rank of a run whose rank 0 has created the folder.
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path config_file() const { return path_ / "config.yaml"; }
  [[nodiscard]] std::filesystem::path log_file() const { return path_ / "log.jsonl"; }
  [[nodiscard]] std::filesystem::path state_file() const { return path_ / "state.json"; }
  [[nodiscard]] std::filesystem::path lock_file() const { return path_ / ".lock"; }
  [[nodiscard]] std::filesystem::path requests() const { return path_ / "requests"; }
  [[nodiscard]] std::filesystem::path samples() const { return path_ / "samples"; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  [[nodiscard]] std::filesystem::path tokenizer() const { return path_ / "tokenizer"; }

 private:
  std::filesystem::path path_;
  std::optional<io::FileLock> lock_;
};

}  // namespace kinora::train
