#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "kinora/io/file_lock.h"

/// The folder that samples are written to as they are drawn:
///
///     image-00000_class-0.png, ...  the samples (sample_files.h), each whole once it has its name
///     drawing.json                  what they are drawn from; the same drawing goes on there
///     .drawing/                     what it needs until it is done, and verdicts of --judge
namespace kinora::inference {

/// What decides samples, in words: drawings of equal keys draw equal samples.
using DrawingKey = std::map<std::string, std::string>;

/// Makes a folder that of one drawing: its own from before, or one without samples. Else kConfig,
/// which says what differs, but with `overwrite` the samples in it are removed, and nothing else.
/// Nobody else draws into it while the lock is held. kIo.
[[nodiscard]] io::FileLock claim_folder(const std::filesystem::path& folder, const DrawingKey& key,
                                        bool overwrite);

/// What a drawing needs until it is done.
[[nodiscard]] std::filesystem::path scratch_of(const std::filesystem::path& folder);

}  // namespace kinora::inference
