#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/io/picture_texts.h"

namespace kinora::inference {

/// Options of a command line by name, "--seed": {"3"}; of a flag the values do not count.
using OptionValues = std::map<std::string, std::vector<std::string>>;

/// What a sample was drawn from, as its file keeps it.
struct SampleMetadata {
  std::string version;  ///< of Kinora
  std::string prompt;   ///< of this sample; empty: not known
  std::string negative;
  std::string label;    ///< its class; empty: not known
  std::string model;    ///< as it was named
  std::string weights;  ///< a checksum of them
  std::string sampler;
  int64_t steps = 0;
  double guidance = 0.0;
  uint64_t seed = 0;
  int64_t index = 0;  ///< of the sample: its noise is that of (seed, index)
  int64_t width = 0;  ///< in pixels, as height
  int64_t height = 0;
  int64_t frames = 1;
  OptionValues options;  ///< of `kinora sample`, which draw it again
};

/// Two texts: "parameters" for people, and tools that know AUTOMATIC1111's, and "kinora", JSON with
/// all of it. Where the options would take more than a quarter of what a file may keep, other
/// samples' captions are left out, and the sample is drawn again by itself.
[[nodiscard]] std::vector<io::PictureText> texts_of(const SampleMetadata& metadata);

/// The inverse, of the texts of the file `name`. kIo where they are not Kinora's, or damaged.
[[nodiscard]] SampleMetadata read_metadata(std::span<const io::PictureText> texts,
                                           const std::string& name);

/// What the picture or clip at `path` says; nothing for files that keep no texts, or none of
/// Kinora's. kIo for damaged ones.
[[nodiscard]] std::optional<SampleMetadata> read_file_metadata(const std::filesystem::path& path);

}  // namespace kinora::inference
