#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// The folders of a run's checkpoints: step-0, step-1000, ..., each whole, since a folder gets its
/// name only when everything in it is on the disk.
namespace kinora::checkpoint {

/// "step-1000" in `folder`.
[[nodiscard]] std::filesystem::path step_folder(const std::filesystem::path& folder, int64_t step);

/// The step of a folder's name; nothing if it is not a checkpoint's.
[[nodiscard]] std::optional<int64_t> step_of(const std::filesystem::path& checkpoint);

/// Checkpoints in `folder`, oldest first; unfinished ones do not count.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& folder);

/// kIo, saying how much is missing, unless `folder` has room for `bytes` of arrays and what goes
/// with them.
void check_space(const std::filesystem::path& folder, int64_t bytes);

/// What a checkpoint that this process writes is called until it is whole.
[[nodiscard]] std::string unfinished_name(int64_t step);

/// Removes unfinished checkpoints. Only for who holds the run's lock.
void remove_unfinished(const std::filesystem::path& folder);

/// Removes all but the newest `keep_last` checkpoints (0: none is removed) and those whose step is
/// a multiple of `keep_every` (0: no such).
void prune(const std::filesystem::path& folder, int64_t keep_last, int64_t keep_every);

}  // namespace kinora::checkpoint
