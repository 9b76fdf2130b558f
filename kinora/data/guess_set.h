#pragma once

#include <string>

#include "kinora/data/data_config.h"

namespace kinora::data {

/// The configuration of the set at `path`, by its suffix or by what lies in the folder: a table is
/// a manifest; an archive with captions or classes by key is a WebDataset, another one holds class
/// folders; a folder with metadata is an imagefolder, one with pictures in folders and no captions
/// beside them holds classes, others have captions or none. Error (kConfig): nothing of these;
/// (kIo): it cannot be read.
[[nodiscard]] DataConfig guess_set(const std::string& path);

/// What such a set is taken for, in words: "data.source=folder (a folder for each class)".
[[nodiscard]] std::string layout_text(SourceKind source);

}  // namespace kinora::data
