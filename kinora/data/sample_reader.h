#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kinora/data/source.h"
#include "kinora/io/image_resize.h"

/// What the loader's threads do with one sample.
namespace kinora::data {

/// The unreadable samples met so far. Thread-safe.
class BadSamples {
 public:
  /// `limit` -1: 1 % of `source`, at least 10.
  BadSamples(const Source& source, int64_t limit);

  [[nodiscard]] bool contains(int64_t index) const;
  [[nodiscard]] int64_t count() const { return count_.load(std::memory_order_relaxed); }

  /// Notes that sample `index` cannot be read because of `reason`, an error's message that names
  /// it; the first time this goes to the log. Throws as check().
  void add(int64_t index, const std::string& reason);

  /// Throws Error (kIo) with the first reasons when there are more than the limit, or no others.
  void check() const;

 private:
  void check_locked() const;

  const Source& source_;
  int64_t limit_;
  mutable std::mutex mutex_;
  std::atomic<int64_t> count_{0};
  std::set<int64_t> indices_;
  std::vector<std::string> first_reasons_;
};

/// Reads samples as a batch holds them: images cropped to one size, latents as they are. One per
/// thread: its buffers are used again.
class SampleReader {
 public:
  /// `height` and `width` are those of images; latents keep their own.
  SampleReader(const Source& source, int64_t height, int64_t width)
      : source_(source), latent_shape_(source.latent_shape()), height_(height), width_(width) {}

  /// Size of one sample in a batch.
  [[nodiscard]] int64_t num_bytes() const;

  /// Writes sample `index` to `out`, num_bytes() long, and returns its label: an image, mirrored if
  /// `flip`, as uint8 [3, height, width], a latent as float32 [C, h, w]. Throws what Source::read
  /// throws.
  int64_t read(int64_t index, bool flip, std::byte* out);

 private:
  void write_image(int64_t index, bool flip, uint8_t* planes);
  void write_latent(int64_t index, std::byte* out) const;

  const Source& source_;
  std::optional<SampleShape> latent_shape_;
  int64_t height_;
  int64_t width_;
  Sample sample_;
  io::Image cropped_;
  io::Resizer resizer_;
};

}  // namespace kinora::data
