#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "kinora/data/buffer_pool.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// One micro-batch on the host. What the source does not have is an undefined tensor.
struct Batch {
  /// Images uint8 [B, 3, H, W], clips of T > 1 frames uint8 [B, 3, T, H, W], latents of either
  /// float32 [B, C, h, w] or [B, C, T, h, w]; to_float makes of each what a model takes. Pinned
  /// where a GPU is used.
  at::Tensor images = {};
  /// Of latents that are drawn anew each time, of which `images` are the mean: their standard
  /// deviation, as `images`.
  at::Tensor latent_std = {};
  at::Tensor labels = {};  ///< int64 [B]
  at::Tensor sample_index =
      {};                ///< int64 [B]: position in the data stream, the RNG's sample number
  at::Tensor fps = {};   ///< of clips: float32 [B], frames a second as they lie here
  at::Tensor text = {};  ///< float32 [B, L, D], zero behind a text's length; may be pinned
  /// Instead of `text`, where a text encoder is behind: ids int64 [B, L], padding behind a text's
  /// length.
  at::Tensor tokens = {};
  at::Tensor text_lengths = {};  ///< int64 [B], from 1 to L; with `text` or `tokens`
  at::Tensor pooled = {};        ///< float32 [B, pooled channels]
  /// Of pictures: height and width as they were before all was made of them, in pixels, float32
  /// [B, 2]; 0: not known.
  at::Tensor original_size = {};
  at::Tensor control = {};  ///< what a ControlNet is shown: uint8 [B, 3, H, W]
  /// The pictures before they were changed: uint8 [B, 3, H, W], where images are latents float32
  /// [B, C, h, w].
  at::Tensor before = {};
  /// Pictures of what is to be seen: uint8 [B, 3, N, H, W], or latents float32 [B, C, N, h, w], and
  /// how many of them each sample has, int64 [B]; those behind are unspecified.
  at::Tensor references = {};
  at::Tensor num_references = {};
  /// Which places count, 255 whole, or are filled in, from 128 on: uint8 [B, 1, H, W].
  at::Tensor mask = {};
  /// Of latents: those of the pictures without what `mask` fills in, grey there, float32 [B, C, h,
  /// w].
  at::Tensor masked = {};
  /// What a U-Net is shown beside them (diffusion::Conditions::beside), which a train::EncodeStage
  /// makes of `before`, of `references`, or of mask and pictures.
  at::Tensor beside = {};
  /// Of clips some of whose frames are given (diffusion::Conditions::given): what a
  /// train::EncodeStage makes of those alone, as `images`.
  at::Tensor given = {};
  /// What an image encoder says of these (diffusion::Conditions::image_prompt), likewise.
  at::Tensor image_prompt = {};
};

/// The first `count` samples of `batch`, as views.
[[nodiscard]] Batch first_samples(const Batch& batch, int64_t count);

/// Copies of the samples `rows`, int64.
[[nodiscard]] Batch selected_samples(const Batch& batch, const at::Tensor& rows);

/// What a batch holds of an image or clip; latents keep their own size.
struct SampleSize {
  int64_t height = 0;
  int64_t width = 0;
  int64_t frames = 1;          ///< T; 1 makes images, also of clips
  int64_t frame_stride = 1;    ///< takes every so many frames
  double max_fps = 0.0;        ///< see FrameChoice
  bool scaled_decode = false;  ///< see io::CropHint::may_scale

  [[nodiscard]] PixelSize pixels() const {
    return {.height = height, .width = width, .frames = frames};
  }

  /// `start` as there.
  [[nodiscard]] FrameChoice choice(float start) const {
    return {.count = frames, .min_stride = frame_stride, .max_fps = max_fps, .start = start};
  }
};

/// The latents that `source` gives of samples of that size; nothing if it gives pixels.
[[nodiscard]] std::optional<LatentShape> latents_of(const Source& source, const SampleSize& size);

/// Empty batches for samples of one source; their memory is used again.
class BatchBuffers {
 public:
  /// Throws Error (kConfig) for sizes that are not positive, and for several frames of a source of
  /// images.
  BatchBuffers(const Source& source, const SampleSize& size, int64_t batch, bool pinned);

  /// Values are unspecified.
  [[nodiscard]] Batch take();

  /// Buffers made so far, one for each tensor of a batch; see BufferPool on pinned ones.
  [[nodiscard]] int64_t num_allocated() const;

 private:
  BufferPool images_;
  BufferPool labels_;
  BufferPool sample_index_;
  std::optional<BufferPool> latent_std_;
  std::optional<BufferPool> fps_;
  std::optional<BufferPool> text_;
  std::optional<BufferPool> tokens_;
  std::optional<BufferPool> text_lengths_;
  std::optional<BufferPool> pooled_;
  std::optional<BufferPool> original_size_;
  std::optional<BufferPool> control_;
  std::optional<BufferPool> before_;
  std::optional<BufferPool> references_;
  std::optional<BufferPool> num_references_;
  std::optional<BufferPool> mask_;
  std::optional<BufferPool> masked_;
};

}  // namespace kinora::data
