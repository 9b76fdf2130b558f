#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/data/loader.h"
#include "kinora/data/source.h"

namespace kinora::data {

enum class SourceKind : uint8_t { kShapes, kFolder, kTar, kLatents };

/// Which images or latents to train on, and how to load them.
struct DataConfig {
  SourceKind source = SourceKind::kShapes;
  std::vector<std::string> path;  ///< of the folder, or of one or several archives or latents
  int64_t height = 32;            ///< pixels that the model sees; of images only
  int64_t width = 32;
  int64_t count = 65536;  ///< of generated images
  int64_t seed = 0;       ///< of generated images and of what is held out
  int64_t validation = 0;
  bool flip = false;
  int64_t threads = 0;
  int64_t queue = 4;
  int64_t max_bad = -1;
};

/// Names the keys, all under "data.".
void describe(Fields& fields, DataConfig& config);

/// The whole set. Throws Error as the sources do.
[[nodiscard]] std::unique_ptr<Source> open_source(const DataConfig& config);

/// The loader's options that the configuration knows; batches, ranks, position and seed stay to be
/// set.
[[nodiscard]] LoaderOptions loader_options(const DataConfig& config);

}  // namespace kinora::data
