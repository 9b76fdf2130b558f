#pragma once

#include <cstdint>
#include <vector>

#include "kinora/io/filter_passes.h"
#include "kinora/io/image.h"

/// Resampling and cropping, equal to Pillow's Image.resize to the last bit. (Pillow 13 and later
/// filter columns first where the height shrinks much more than the width; here, as in the versions
/// that published models were trained with, rows always come first. Crops that keep the aspect
/// ratio are the same in all versions.)
namespace kinora::io {

/// With antialiasing: when an image shrinks, the filter widens by the same factor.
enum class Filter {
  kBox,      ///< mean of the covered pixels
  kBicubic,  ///< Keys 1981 with a = -0.5
  kLanczos,  ///< of three lobes
};

/// Resamples and crops; keeps its scratch memory and the filter tables of recent sizes, so that a
/// loader's thread works without allocations. Not thread-safe: one a thread.
///
/// The arithmetic is Pillow's (libImaging/Resample.c): weights in fixed point with 22 fractional
/// bits, first along rows, then along columns, rounded to 8 bits after each; an axis whose size
/// stays is not filtered.
class Resizer {
 public:
  /// `image` at height x width into `out` (another object), whose memory is reused. Error (kShape):
  /// a size outside 1..kMaxImageSide, or an image that is not RGB.
  void resize(const Image& image, int64_t height, int64_t width, Filter filter, Image& out);

  /// ADM's centre crop (guided-diffusion, center_crop_arr; also DiT's), for rectangles too:
  ///  1. while height and width are both at least twice the target's, halve the image with kBox
  ///     (an odd size rounds down);
  ///  2. resize with kBicubic by the least factor that covers the target,
  ///     max(target height / height, target width / width), sizes rounded half to even;
  ///  3. cut the target from the centre, at offset (size - target) / 2 rounded down.
  /// A square target gives ADM's result exactly. Errors as resize().
  void center_crop(const Image& image, int64_t height, int64_t width, Image& out);

 private:
  // A range of the pixels that a resized axis would have.
  struct Window {
    int64_t begin;
    int64_t count;
  };
  // The filter of one axis, and what it was made for.
  struct Table {
    int64_t in_size = 0;
    int64_t out_size = 0;
    Window window{0, 0};
    Filter filter = Filter::kBox;
    uint64_t last_use = 0;
    AxisFilter axis;
  };

  // Valid until the next but one call: the table not used for longest makes room.
  const AxisFilter& axis_filter(int64_t in_size, int64_t out_size, Window window, Filter filter);
  void resize_window(const Image& image, int64_t height, int64_t width, Window rows, Window columns,
                     Filter filter, Image& out);

  std::vector<Table> tables_;
  uint64_t num_uses_ = 0;
  std::vector<uint8_t> rows_;  // after the pass along rows
  std::vector<uint8_t> scratch_;
  Image halved_[2];
};

/// A part of an image.
struct Region {
  int64_t top = 0;
  int64_t left = 0;
  int64_t bottom = 0;  ///< the first row behind it
  int64_t right = 0;   ///< the first column behind it
};

/// Holds all pixels of an image of `size` that Resizer::center_crop to height x width reads, and
/// few others.
[[nodiscard]] Region center_crop_region(ImageSize size, int64_t height, int64_t width);

/// Rows and columns that Resizer::center_crop of an image of `size` to height x width cuts off
/// above and at the left, after it made the image smaller.
[[nodiscard]] ImageSize center_crop_offset(ImageSize size, int64_t height, int64_t width);

/// Resizer::resize and Resizer::center_crop without memory to reuse.
[[nodiscard]] Image resize(const Image& image, int64_t height, int64_t width, Filter filter);
[[nodiscard]] Image center_crop(const Image& image, int64_t height, int64_t width);

}  // namespace kinora::io
