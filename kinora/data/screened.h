#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/index.h"
#include "kinora/data/wrapped_source.h"

namespace kinora::data {

/// Names of samples that are not to be used, and why.
using Quarantine = std::map<std::string, std::string, std::less<>>;

/// Reads a text file with one name a line, and perhaps its cause behind a tab; empty lines and
/// those that begin with # are passed by. Error (kIo): it cannot be read.
[[nodiscard]] Quarantine read_quarantine(const std::filesystem::path& path);

/// Writes such a file. Names with line ends or tabs cannot be written: Error (kIo).
void write_quarantine(const std::filesystem::path& path, const Quarantine& quarantine);

struct ScreeningOptions {
  std::filesystem::path quarantine = {};  ///< empty: there is none
  std::filesystem::path index = {};       ///< as update_index makes it; empty: there is none
  int64_t max_bad = -1;                   ///< as allowed_bad takes it
};

/// `source` without the samples that are in quarantine or that the index knows to be unusable; what
/// the index knows of the others is not read from the files again. Both are files that must exist.
///
/// Error (kIo) with the first names: the index and the source itself (see PassedOver) reject more
/// than `max_bad` allows. Samples in quarantine do not count.
[[nodiscard]] std::unique_ptr<Source> screen(std::unique_ptr<Source> source,
                                             const ScreeningOptions& options);

/// All of `source`; what the index knows of its usable samples is not read from the files again.
[[nodiscard]] std::unique_ptr<Source> with_known_facts(std::unique_ptr<Source> source, Index index);

}  // namespace kinora::data
