#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/config_table.h"
#include "kinora/core/philox.h"
#include "kinora/data/source.h"

/// Samples of many sizes: each goes to the bucket that suits it, and batches hold samples of one.
namespace kinora::data {

/// Named lists of aspect ratios.
enum class AspectRatios : uint8_t {
  kOpenSora2,  ///< 1:1, 4:3, 3:2, 8:5, 16:9, 1.85:1, 2:1, 2.39:1, both ways
  kOpenSora1,  ///< 15 ratios of height to width from 0.39 to 2.10
  kSquare,     ///< 1:1 alone
};

/// Height over width, ascending.
[[nodiscard]] const std::vector<double>& heights_over_widths(AspectRatios ratios);

/// Pixels of a resolution: "256px" and "256" are 256 x 256, "480p" is 480 x 854 (16:9, the width
/// even). Nothing for other names.
[[nodiscard]] std::optional<int64_t> resolution_pixels(std::string_view name);

/// The rows as YAML for data.buckets, a line a resolution: "256px": {1: [1.0, 64], 16: [0.5, 8]}.
[[nodiscard]] std::string bucket_yaml(const ConfigTable& rows, int64_t indent);

/// Where buckets come from.
struct BucketOptions {
  /// A row for each resolution and number of frames: [keep, batch] or [[keep, keep frames], batch].
  ConfigTable rows;
  AspectRatios ratios = AspectRatios::kOpenSora2;
  int64_t multiple = 16;     ///< heights and widths are multiples of it
  int64_t frame_stride = 1;  ///< frames of a clip of which every so many-th is taken
  double max_fps = 0.0;      ///< see FrameChoice
};

/// Samples of one size.
struct Bucket {
  std::string resolution;
  int64_t frames = 1;
  int64_t height = 0;
  int64_t width = 0;
  double ratio = 1.0;  ///< height over width, of heights_over_widths(); sides are rounded
  int64_t row = 0;     ///< of the table, in the order of search
  int64_t batch = 1;   ///< samples at once on a rank

  [[nodiscard]] PixelSize pixels() const {
    return {.height = height, .width = width, .frames = frames};
  }
  /// "480p, 51 frames, 480 x 848".
  [[nodiscard]] std::string text() const;
};

/// All buckets, and which of them a sample goes to.
///
/// Resolutions are searched from the largest to the smallest, and in each the numbers of frames
/// from the longest to the shortest. A row suits a sample whose height x width is at least 0.8 of
/// the resolution's pixels and which has enough frames; images suit rows of 1 frame, clips all
/// others. The first row that suits takes the sample with its keep probability; else the next
/// smaller resolution is tried. A second probability, `keep frames`, is asked first: where it says
/// no, the next shorter number of frames of the same resolution is tried. Of the row, the bucket
/// with the nearest aspect ratio is taken.
class BucketTable {
 public:
  /// Error (kConfig): no rows, an unknown resolution, the same row twice, numbers out of range,
  /// buckets without a pixel.
  explicit BucketTable(const BucketOptions& options);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }

  /// The number of the bucket that takes the sample where `draws` decide; nothing if none does.
  [[nodiscard]] std::optional<int64_t> find(const SampleFacts& sample,
                                            const RandomStream& draws) const;

  /// All that `find` may give, in the order of search.
  [[nodiscard]] std::vector<int64_t> possible(const SampleFacts& sample) const;

  /// The first that suits, whatever the probabilities: what `find` may give at best.
  [[nodiscard]] std::optional<int64_t> largest(const SampleFacts& sample) const;

  /// Whether row Bucket::row suits the sample, whatever the probabilities.
  [[nodiscard]] bool suits(int64_t row, const SampleFacts& sample) const;

  /// Why no row suits the sample: "too small", "too short"; empty if one does.
  [[nodiscard]] std::string misfit(const SampleFacts& sample) const;

 private:
  struct Row {
    std::string resolution;
    int64_t pixels = 0;
    int64_t frames = 1;
    double keep = 1.0;
    double keep_frames = 1.0;
    int64_t batch = 1;
    int64_t first_bucket = 0;  // one for each ratio from here on
  };

  [[nodiscard]] bool is_large_enough(const Row& row, const SampleFacts& sample) const;
  [[nodiscard]] bool has_frames(const Row& row, const SampleFacts& sample) const;
  [[nodiscard]] int64_t nearest(const Row& row, const SampleFacts& sample) const;

  BucketOptions options_;
  std::vector<Row> rows_;  // in the order of search
  std::vector<Bucket> buckets_;
};

}  // namespace kinora::data
