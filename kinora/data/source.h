#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/io/image.h"

namespace kinora::data {

/// The size of one sample as a batch holds it.
struct SampleShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  [[nodiscard]] int64_t num_values() const { return channels * height * width; }
  [[nodiscard]] std::string text() const;  ///< "4 x 32 x 32"

  bool operator==(const SampleShape&) const = default;
};

/// One decoded sample: an image or, of sources with a latent_shape, a latent. Readers fill it in
/// place, so that a thread's buffers are allocated once.
///
/// Video will follow as further frames of the same size beside `image` with the frame rate, filled
/// by the same read(); whoever knows only images goes on reading `image`.
struct Sample {
  io::Image image;
  std::vector<float> latent;  ///< [C, h, w]
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

  /// The shape of the latents that read() gives; nothing if it gives images, which may differ in
  /// size and are cropped by the reader.
  [[nodiscard]] virtual std::optional<SampleShape> latent_shape() const { return std::nullopt; }

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
