#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "kinora/io/file_lock.h"

/// The folder that samples are written to as they are drawn:
///
///     image-00000_class-0.png, ...  the samples (sample_files.h), each whole once it has its name
///     drawing.json                  what they are drawn from; the same drawing goes on there
///     .drawing/                     what it needs until it is done, and verdicts of --judge
namespace kinora::inference {

/// What decides samples, in words: drawings of equal keys draw equal samples. "count" is how many.
using DrawingKey = std::map<std::string, std::string>;

/// The key of the first `count` samples of a drawing.
using KeyOfFirst = std::function<DrawingKey(int64_t count)>;

/// Makes a folder that of one drawing of `count` samples: its own from before, also where that was
/// of fewer samples, or one without samples. Else kConfig, which says what differs, but with
/// `overwrite` the samples in it are removed, and nothing else. Nobody else draws into it while the
/// lock is held. kIo.
[[nodiscard]] io::FileLock claim_folder(const std::filesystem::path& folder, int64_t count,
                                        const KeyOfFirst& key_of, bool overwrite);

/// What a drawing needs until it is done.
[[nodiscard]] std::filesystem::path scratch_of(const std::filesystem::path& folder);

}  // namespace kinora::inference
