#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/data/caption_choice.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/data/loader.h"
#include "kinora/data/source.h"

namespace kinora::data {

enum class SourceKind : uint8_t {
  kShapes,
  kMovingShapes,
  kScenes,
  kFolder,
  kTar,
  kCaptions,
  kManifest,
  kWebDataset,
  kImageFolder,
  kLatents,
};

/// What an image file holds.
enum class FrameLayout : uint8_t {
  kImage,  ///< one image
  kStrip,  ///< a clip: square frames side by side
  kVideo,  ///< a clip: the file is a video
};

/// Where the texts of samples come from. The numbers are part of set_identity().
enum class TextKind : uint8_t { kNone = 0, kFile = 2, kTokens = 3 };

/// What data.mask asks for.
enum class MaskKind : uint8_t {
  kNone,
  kFile,   ///< NAME.mask.png beside NAME.jpg
  kDrawn,  ///< drawn at random (drawn_masks.h)
};

/// Which images, clips or latents to train on, and how to load them.
struct DataConfig {
  SourceKind source = SourceKind::kShapes;
  std::vector<std::string> path;  ///< of the folder, or of one or several files
  bool allow_outside = false;     ///< manifests may name files outside of their folder
  int64_t height = 32;            ///< pixels that the model sees; of images only
  int64_t width = 32;
  FrameLayout frame_layout = FrameLayout::kImage;
  int64_t frames = 1;  ///< of a clip that the model sees
  int64_t frame_stride = 1;
  double max_fps = 0.0;  ///< 0: no limit
  double fps = 8.0;  ///< of clips as they are stored; of latents: where their files do not say it
  std::string caption;  ///< of samples that have none
  CaptionChoice captions;
  TextKind text = TextKind::kNone;
  std::string text_embeddings;
  int64_t layout_grid = 0;  ///< above 0: captions are layouts (CaptionTokens::layout_grid)
  int64_t count = 65536;    ///< of generated images or clips
  int64_t seed = 0;         ///< of generated images and of what is held out
  int64_t validation = 0;
  bool flip = false;
  bool control = false;  ///< data.control, data.before, data.mask: what lies beside pictures
  bool before = false;
  MaskKind mask = MaskKind::kNone;
  int64_t references = 0;  ///< pictures of what is to be seen, at most
  ConfigTable buckets;     ///< none: all samples have height, width and frames
  AspectRatios bucket_ratios = AspectRatios::kOpenSora2;
  int64_t bucket_multiple = 16;
  int64_t bucket_batches = 0;  ///< in a step, over all ranks; 0: one for each rank
  bool scaled_decode = false;
  int64_t threads = 0;
  int64_t queue = 4;
  int64_t max_bad = -1;
  std::string index;       ///< empty: there is none
  std::string quarantine;  ///< empty: there is none
};

/// Names the keys, all in `section`; what they mean stands with those of "data" alone.
void describe(Fields& fields, DataConfig& config, std::string_view section = "data");

/// The set without the samples that data.index and data.quarantine reject. Throws Error as the
/// sources and as screen() do. `tokens`: for data.text tokens; null: samples come without them,
/// for those who look at pictures and captions alone.
[[nodiscard]] std::unique_ptr<Source> open_source(const DataConfig& config,
                                                  const CaptionTokens* tokens = nullptr);

/// The whole set.
[[nodiscard]] std::unique_ptr<Source> open_whole_source(const DataConfig& config,
                                                        const CaptionTokens* tokens = nullptr);

/// The file of data.text file: data.text_embeddings, else that of the cache of latents.
[[nodiscard]] std::filesystem::path text_file_of(const DataConfig& config);

/// What tells this set, as files show it, from others: its kind and its full paths.
[[nodiscard]] std::string set_identity(const DataConfig& config);

/// What a batch holds of a sample.
[[nodiscard]] SampleSize sample_size(const DataConfig& config);

/// The loader's options that the configuration knows; batches, ranks, position and seed stay to be
/// set.
[[nodiscard]] LoaderOptions loader_options(const DataConfig& config);

}  // namespace kinora::data
