#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/diffusion/frame_mask.h"
#include "kinora/io/image.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/model_config.h"
#include "kinora/models/shown_input.h"
#include "kinora/pipelines/image_encoder_file.h"
#include "kinora/pipelines/latent_encoder.h"

/// What models of clips are shown of given frames beside x_t (models::shows_frames()), in training
/// as in drawing.
namespace kinora::inference {

/// The frame that a clip begins with, and the one that it ends with: pictures of any size.
using EndFrames = std::vector<io::Image>;

/// Those of clips, which take the files `firsts` in turn and all end in `last`, if that is no empty
/// path. kConfig unless `model` is shown just these; kIo.
[[nodiscard]] std::vector<EndFrames> read_end_frames(const std::vector<std::string>& firsts,
                                                     const std::string& last,
                                                     const models::ModelConfig& model);

/// Which frames of clips are given, and the latents of clips that are grey elsewhere:
/// float32 [B, models::channels_beside, T, h, w] on the encoder's device. frames: float32
/// [B, 3, F, H, W] in [-1, 1], of which only given ones are read; given: bool [B, F] on the CPU.
/// kConfig for an encoder that makes latents of other numbers of frames.
[[nodiscard]] at::Tensor shown_frames(const at::Tensor& frames, const at::Tensor& given,
                                      const pipelines::LatentEncoder& encoder);

/// Of models that are shown the first frame alone (models::shows_first_frame): its latents, and
/// zeros behind them and where no frame is given; marked, and a channel that is 1 where they are:
/// float32 [B, C or C + 1, T, h, w] on the encoder's device. first: float32 [B, 3, H, W] in
/// [-1, 1]; given: bool [B] on the CPU.
[[nodiscard]] at::Tensor shown_first_frame(const at::Tensor& first, const at::Tensor& given,
                                           int64_t latents, bool marked,
                                           const pipelines::LatentEncoder& encoder);

/// What `model` is shown of read_end_frames() in clips of its size, to which they are cropped: [N,
/// ...] on the CPU. kConfig without an encoder.
[[nodiscard]] at::Tensor shown_frames(const std::vector<EndFrames>& clips,
                                      const models::ModelConfig& model,
                                      models::Autoencoder* encoder, at::Device device);

/// What an image encoder says of given frames (diffusion::Conditions::image_prompt).
class FrameStates {
 public:
  /// folder: image.encoder. Errors of check() and pipelines::PictureEncoder.
  FrameStates(const std::string& folder, const models::ModelConfig& model, at::Device device);

  /// kConfig, naming both numbers, unless the encoder there says of frames what `model` reads; kIo.
  /// It reads config.json alone.
  static void check(const std::string& folder, const models::ModelConfig& model);

  /// Of the frames of one clip, one behind the other: fp32 [1, M, C] on the device.
  [[nodiscard]] at::Tensor of_clip(const EndFrames& frames) const;

 private:
  pipelines::PictureEncoder encoder_;
};

/// What a batch of clips is shown while a model learns: `beside`, and with `states` (may be null)
/// `image_prompt`. Of the ends of clips those are given that draw_frame_masks() of these leaves
/// clean.
struct FrameShowing {
  models::ShownInput input = models::ShownInput::kFrames;
  diffusion::FrameMaskRatios ratios;
  uint64_t seed = 0;
  int64_t step = 0;
  const FrameStates* states = nullptr;

  /// batch.images: uint8 [B, 3, F, H, W] on the CPU, with sample_index.
  void add_to(data::Batch& batch, const pipelines::LatentEncoder& encoder) const;
};

}  // namespace kinora::inference
