#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/bucket.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// A batch of a step that a rank computes, alone or with others.
struct OwnBatch {
  size_t batch = 0;   ///< its place in the step
  int64_t ranks = 1;  ///< that have it
};

/// Which batches of a step, by their buckets, a rank computes, in this order.
using ShareOut = std::function<std::vector<OwnBatch>(const std::vector<Bucket>& step)>;

struct LoaderOptions {
  int64_t height = 0;  ///< of the images of a batch; latents keep their own size
  int64_t width = 0;
  int64_t frames = 1;          ///< of clips; 1 makes images, also of clips
  int64_t frame_stride = 1;    ///< takes every so many frames of a clip
  double max_fps = 0.0;        ///< of clips, see FrameChoice
  bool scaled_decode = false;  ///< see io::CropHint::may_scale
  int64_t micro_batch = 1;     ///< samples in a Batch
  int64_t global_batch = 1;    ///< samples of all ranks in a step; a multiple of both others
  int64_t rank = 0;            ///< which of num_ranks equal parts of a global batch is ours
  int64_t num_ranks = 1;
  int64_t first_position = 0;  ///< where in the data stream the first global batch starts
  uint64_t seed = 0;           ///< keys order, flips and which frames of a clip are taken
  bool random_flip = false;    ///< mirror every other image or clip; not for latents
  int64_t num_threads = 0;     ///< decoding threads; 0: half the cores, from 1 to 16
  int64_t queue_depth = 4;     ///< batches decoded ahead
  bool pinned = false;         ///< batches in page-locked memory (needs a GPU)
  BucketOptions buckets;       ///< with rows: batches of many sizes, see below
  int64_t bucket_batches = 0;  ///< of a bucket in a step, over all ranks; 0: one for each rank
  ShareOut share_out;          ///< with it steps are of several buckets, see below
  int64_t max_bad = -1;        ///< unreadable samples allowed; -1: 1 % of the set, at least 10
};

/// A step of several buckets.
struct MixedStep {
  int64_t num_samples = 0;    ///< of all ranks
  int64_t num_batches = 0;    ///< likewise
  std::vector<OwnBatch> own;  ///< those that next() gives
};

/// Threads that read where `asked` are: as LoaderOptions::num_threads.
[[nodiscard]] int64_t thread_count(int64_t asked);

/// The sample of several that took longest to read, decode and crop.
struct SlowestSample {
  double seconds = 0.0;
  std::string name;  ///< empty: none yet

  void add(const SlowestSample& other) {
    if (other.seconds > seconds) {
      *this = other;
    }
  }
};

struct LoaderStats {
  int64_t num_batches = 0;    ///< handed out
  double wait_seconds = 0.0;  ///< spent waiting in next()
  int64_t num_bad = 0;        ///< different unreadable samples met
  int64_t num_buffers = 0;    ///< buffers for tensors of batches made, see BatchBuffers
  SlowestSample slowest;      ///< of the batch that was handed out last
};

/// Reads, decodes, crops and flips in threads of its own, and hands out batches in the order of
/// EpochOrder. What next() returns depends on the source and the options up to `random_flip` only:
/// not on threads or timing, and a loader that starts at position p continues the stream of one
/// that stopped there.
///
/// Global batch g covers the positions first_position + g * global_batch and on; a rank takes a
/// contiguous part of it, in order, as global_batch / (num_ranks * micro_batch) batches.
///
/// With `buckets` height, width, frames and both batch sizes are those of a bucket, all batches of
/// a step on all ranks are of the same one, and the order is that of BucketOrder, which depends on
/// bucket_batches too; a rank takes a contiguous part of a step, in order, as bucket_batches /
/// num_ranks batches. first_position must be where a step begins, as the sizes of steps add up.
///
/// With `buckets` and `share_out` a step has bucket_batches batches, each of a bucket of its own,
/// in the order in which buckets fill; which of them are this rank's share_out says.
///
/// A sample that cannot be read is named in the log once, and another takes its place (see
/// EpochOrder::replacement and BucketOrder::replacement). Above `max_bad` such samples next()
/// throws Error (kIo) with the first names, and goes on throwing it.
class Loader {
 public:
  /// `source` must outlive the loader. Throws Error (kConfig) for options that do not fit together.
  Loader(const Source& source, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch; its memory is used again once the last tensor on it is gone. Not for several
  /// threads at once.
  [[nodiscard]] Batch next();

  /// With LoaderOptions::share_out: the next step, whose own batches next() gives then. Errors as
  /// next(), and those of share_out.
  [[nodiscard]] MixedStep next_step();

  [[nodiscard]] LoaderStats stats() const;

  /// While next() waits: a sample that is being read, by name; else empty. Any thread.
  [[nodiscard]] std::string waits_for() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Samples `indices` of `source` as one batch, images cropped but not flipped and of clips the
/// middle frames, for fixed sets such as the validation set; `sample_index` holds the indices.
/// Unreadable samples are named in the log and left out; more than `max_bad` of them (-1: as for
/// the loader), or nothing left: Error (kIo).
[[nodiscard]] Batch load_samples(const Source& source, std::span<const int64_t> indices,
                                 const SampleSize& size, int64_t max_bad = -1);

/// The same of images, or of the middle frame of clips.
[[nodiscard]] inline Batch load_samples(const Source& source, std::span<const int64_t> indices,
                                        int64_t height, int64_t width, int64_t max_bad = -1) {
  return load_samples(source, indices, SampleSize{.height = height, .width = width}, max_bad);
}

}  // namespace kinora::data
