#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/batch.h"
#include "kinora/data/source.h"
#include "kinora/io/image_resize.h"

/// What the loader's threads do with one sample.
namespace kinora::data {

/// Whether an error means that a sample is bad, rather than the program or its settings.
[[nodiscard]] bool is_bad_sample(const Error& error);

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

/// What is random in how a sample is read.
struct Augmentation {
  bool flip = false;   ///< mirrored, every frame of it
  float start = 0.5F;  ///< which frames of a clip: 0 the first ones, below 1 the last ones
  std::optional<RandomStream> caption_draws = {};  ///< as Sample has them
  std::optional<RandomStream> mask_draws = {};     ///< likewise
};

/// Reads samples into batches: images and the frames of clips cropped to one size, latents (of
/// images, or of the frames of clips) and texts as they are. One per thread: its buffers are used
/// again.
///
/// Of a clip with n frames a batch holds `frames`, every stride-th (see FrameChoice), from one of
/// the n - (frames - 1) * stride possible first ones; a shorter clip is an unreadable sample.
class SampleReader {
 public:
  SampleReader(const Source& source, const SampleSize& size)
      : source_(source), latent_(latents_of(source, size)), size_(size) {}

  /// For the batches to come.
  void set_size(const SampleSize& size) {
    size_ = size;
    latent_ = latents_of(source_, size);
  }

  /// Writes sample `index` to place `i` of `batch`, which BatchBuffers made for this source and
  /// size; all but sample_index. Throws what Source::read throws.
  void read(int64_t index, const Augmentation& augmentation, const Batch& batch, int64_t i);

  /// The last sample as its source gave it.
  [[nodiscard]] const Sample& last() const { return sample_; }

 private:
  /// Finds out which frames of `sample_` the batch takes.
  void choose_frames(int64_t index);
  void write_frames(int64_t index, const Augmentation& augmentation, uint8_t* out);
  /// The columns [left, left + width) of `from` as planes of `frames` frames.
  void write_frame(const io::Image& from, int64_t left, int64_t width, bool flip, int64_t frames,
                   uint8_t* out);
  /// To row i: the first channels of a picture beside the sample's, cropped as this.
  void write_beside(const io::Image& picture, bool flip, const at::Tensor& out, int64_t i);
  /// To row i: the sample's pictures of what is to be seen, cropped likewise, and their number.
  void write_references(bool flip, const Batch& batch, int64_t i);
  /// To row i, with latents of what lies beside it.
  void write_latents(int64_t index, const Latent& latent, const Batch& batch, int64_t i) const;
  void write_latent(int64_t index, const StoredValues& values, float* out) const;
  /// Latents of pictures, side by side in `places`; returns how many there are.
  [[nodiscard]] int64_t write_pictures(int64_t index, const StoredValues& values, int64_t places,
                                       float* out) const;
  /// Plane `number` of `values`.
  void write_plane(int64_t index, const StoredValues& values, int64_t number, float* out) const;

  const Source& source_;
  std::optional<LatentShape> latent_;
  SampleSize size_;
  Sample sample_;
  int64_t first_frame_ = 0;  // of sample_
  int64_t stride_ = 1;
  io::Image frame_;
  io::Image cropped_;
  std::vector<uint8_t> planes_;  // of a picture beside
  io::Resizer resizer_;
};

}  // namespace kinora::data
