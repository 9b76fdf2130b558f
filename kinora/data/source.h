#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/io/image.h"

namespace kinora::data {

/// The size of an image or latent, or of each frame of a clip, as a batch holds it.
struct SampleShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  /// Of the picture that a latent stands for, in pixels; 0: not known.
  int64_t pixel_height = 0;
  int64_t pixel_width = 0;

  [[nodiscard]] int64_t num_values() const { return channels * height * width; }
  [[nodiscard]] std::string text() const;  ///< "4 x 32 x 32", "4 x 32 x 32 (256 x 256 pixels)"

  bool operator==(const SampleShape&) const = default;
};

/// The size of the texts of a set.
struct TextShape {
  int64_t length = 0;           ///< L: tokens that every text has room for
  int64_t channels = 0;         ///< D: of a token's vector
  int64_t pooled_channels = 0;  ///< of the vector of the whole text; 0: there is none

  bool operator==(const TextShape&) const = default;
};

/// A text as a model takes it.
struct Text {
  std::vector<float> tokens;  ///< [L, D]; zero from `length` on
  int64_t length = 0;         ///< tokens that count
  std::vector<float> pooled;  ///< [pooled_channels]
};

/// One decoded sample: an image, a clip or, of sources with a latent_shape, a latent. Readers fill
/// it in place, so that a thread's buffers are allocated once; it is used with one source only, and
/// what that source does not know stays as it is here.
///
/// A clip of pixels is a strip: its frames lie side by side in `image`, the first at the left. So
/// whoever knows only images goes on reading `image`.
struct Sample {
  io::Image image;
  int64_t num_frames = 1;     ///< T; divides image.width
  float fps = 0.0F;           ///< frames of a clip a second
  std::string caption;        ///< empty: the class name says all
  Text text;                  ///< of sources with a text_shape
  std::vector<float> latent;  ///< [C, T, h, w]
  int64_t label = 0;          ///< in [0, num_classes)
};

/// A set of labelled samples with random access: generated shapes, class folders, tar files,
/// latents on disk, or a part of another set. Order, shuffling and batches are not its business.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  [[nodiscard]] virtual int64_t size() const = 0;

  /// Names by label.
  [[nodiscard]] virtual const std::vector<std::string>& class_names() const = 0;

  [[nodiscard]] int64_t num_classes() const { return static_cast<int64_t>(class_names().size()); }

  /// The shape of the latents (of clips: of their frames) that read() gives; nothing if it gives
  /// pixels, which may differ in size and are cropped by the reader.
  [[nodiscard]] virtual std::optional<SampleShape> latent_shape() const { return std::nullopt; }

  /// Whether read() gives clips, which may differ in length, rather than single images.
  [[nodiscard]] virtual bool is_video() const { return false; }

  /// The size of the texts that read() gives; nothing if it gives none.
  [[nodiscard]] virtual std::optional<TextShape> text_shape() const { return std::nullopt; }

  /// What messages call the sample: a path, or the position in a generated set.
  [[nodiscard]] virtual std::string sample_name(int64_t index) const = 0;

  /// Fills `out` with sample `index` in [0, size()). Any number of threads may read at once.
  /// Throws Error (kIo) that names the file if it cannot be read or decoded.
  virtual void read(int64_t index, Sample& out) const = 0;
};

/// A source must have at least two images: with none or one there is nothing to shuffle or to hold
/// out, and such a set is nearly always a mistaken path. Throws Error (kConfig) otherwise.
void check_size(int64_t size, const std::string& origin);

}  // namespace kinora::data
