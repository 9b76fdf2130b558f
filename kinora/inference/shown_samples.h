#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "kinora/data/source.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/io/image.h"
#include "kinora/pipelines/draw.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/pipelines/text_batch_encoder.h"

namespace kinora::inference {

/// What the samples that a run draws while it trains are to show.
struct ShownSamples {
  std::function<pipelines::DrawConditions(int64_t first, int64_t size)> conditions;
  std::vector<std::string> captions;  ///< of sample 0, 1, ..., in turn; empty: they are classes
};

/// All classes in turn, or the texts of the first sample.count samples of `data` in turn, made
/// vectors of by `encoder` (may be null) where they are tokens, and the pictures that the model is
/// shown of them, made latents of by `latents` (may be null) and read by `states` (null where no
/// image encoder does). recipe.model is resolved.
[[nodiscard]] ShownSamples shown_samples(const data::Source& data, const ModelRecipe& recipe,
                                         const pipelines::TextBatchEncoder* encoder,
                                         const pipelines::LatentEncoder* latents,
                                         const FrameStates* states, at::Device device);

/// Frames a second of the clips that the run's model sees.
[[nodiscard]] double clip_fps(const data::DataConfig& config);

/// Pixels [B, 3 or 1, H, W] or clips [B, 3 or 1, T, H, W], float32 in [-1, 1], as images; a clip as
/// a strip of its frames.
[[nodiscard]] std::vector<io::Image> shown_images(const at::Tensor& pixels);

/// Clips [B, 3 or 1, T, H, W] that play side by side: T grids.
[[nodiscard]] std::vector<io::Image> shown_animation(const at::Tensor& clips);

}  // namespace kinora::inference
