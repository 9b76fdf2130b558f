#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

#include "kinora/comm/group.h"
#include "kinora/data/batch.h"
#include "kinora/diffusion/frame_mask.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/models/shown_input.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/pipelines/text_batch_encoder.h"
#include "kinora/train/step_samples.h"

namespace kinora::train {

struct EncodeOptions {
  const pipelines::LatentEncoder* encoder = nullptr;   ///< borrowed; null: pixels stay pixels
  const pipelines::TextBatchEncoder* texts = nullptr;  ///< borrowed; null: tokens stay tokens
  const inference::FrameStates* states = nullptr;      ///< borrowed: what reads them; may be null
  models::ShownInput input = models::ShownInput::kPlain;  ///< of the model
  diffusion::FrameMaskRatios given = {};                  ///< which frames of clips are given
  int64_t compression = 1;                                ///< frames that become one of latents
  /// On a GPU the work runs on a stream of its own; else on the current one.
  bool beside = true;
  /// Those that have the same samples and encode pixels together, which then is on the current
  /// stream: beside a step's exchanges, in another order on each GPU, both could wait for each
  /// other. All of them make the same calls.
  comm::Group ranks = {};
};

/// What happens to the samples of a step before the model sees them: they are copied to the device,
/// a frozen autoencoder makes latents of pixels and of what a U-Net is shown beside them, of
/// latents with a deviation one is drawn, and a frozen text encoder makes vectors of tokens. On a
/// GPU this runs on a stream of its own, beside the steps before. Which latents come out depends on
/// seed and place in the stream of samples alone: the same whether pixels or a cache of their
/// latents went in. Where frames of clips are given by weight, those of pixels are encoded by
/// themselves, so that they say nothing of the others (Open-Sora 2).
class EncodeStage {
 public:
  EncodeStage(uint64_t seed, at::Device device, const EncodeOptions& options = {});

  /// Whether all ranks that encode together have samples for begin(), as this one says of itself.
  /// All of them call it.
  [[nodiscard]] bool all_have(bool own) const;
  /// That encode a sample together.
  [[nodiscard]] int64_t num_ranks() const { return ranks_.size(); }

  /// Begins the work; the samples are what it makes of them, for use after wait().
  void begin(StepSamples& samples) const;

  /// Orders what the current stream gets from now on behind that work. The host does not wait.
  void wait(const StepSamples& samples) const;

  /// The same at once, with latents that are not drawn, for samples that are to be the same each
  /// time: means, on the CPU. Waits for the device.
  [[nodiscard]] data::Batch means(const data::Batch& batch) const;

 private:
  /// Whether there is anything to do.
  [[nodiscard]] bool changes(const data::Batch& batch) const;
  [[nodiscard]] models::LatentMoments moments_of(const data::Batch& batch) const;

  /// Where the model is shown something beside the pictures, which are pixels yet, at `step`.
  void encode_shown(data::Batch& batch, int64_t step) const;

  /// Latents of the frames of `pixels` that are given at `step`, by those of whole clips.
  [[nodiscard]] at::Tensor encode_given(const data::Batch& batch, const at::Tensor& pixels,
                                        int64_t step) const;

  /// Where the batch has tokens and somebody encodes them.
  void encode_texts(data::Batch& batch) const;

  [[nodiscard]] const pipelines::LatentEncoder* encoder() const;

  comm::Group ranks_;  // one where nothing is encoded
  std::optional<pipelines::LatentEncoder> encoder_;
  const pipelines::TextBatchEncoder* texts_;
  uint64_t seed_;
  at::Device device_;
  models::ShownInput input_;
  diffusion::FrameMaskRatios given_;
  int64_t compression_;
  const inference::FrameStates* states_;
  std::optional<c10::Stream> stream_;  // of a GPU; nothing: the current one
};

}  // namespace kinora::train
