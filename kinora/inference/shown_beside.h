#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/data/batch.h"
#include "kinora/models/shown_input.h"
#include "kinora/pipelines/latent_encoder.h"

/// What models that fill in or change a picture are shown beside x_t, in training as in drawing.
namespace kinora::inference {

/// By `input`: a mask, by the nearest pixel of each place, and the pictures without what it covers,
/// these grey; these pictures, and the mask's pixels of each place as channels; or the pictures to
/// be changed, of kEdit not scaled. Of latents the mean is shown. pixels: float32 [B, 3, H, W] in
/// [-1, 1]; masks: float32 [B, 1, H, W], 1 where the picture is drawn;
/// encoder: of models of latents, on whose device the result is; null: of pixels. Undefined where
/// nothing is shown.
[[nodiscard]] at::Tensor shown_beside(const at::Tensor& pixels, const at::Tensor& masks,
                                      models::ShownInput input,
                                      const pipelines::LatentEncoder* encoder);

/// Of models that are shown up to N pictures of subjects as tokens: each picture by itself, zeros
/// behind the first counts[b] of a sample. pixels: float32 [B, 3, N, H, W] in [-1, 1], counts:
/// int64 [B]. Returns float32 [B, C, N, h, w]. encoder: as above.
[[nodiscard]] at::Tensor shown_references(const at::Tensor& pixels, const at::Tensor& counts,
                                          const pipelines::LatentEncoder* encoder);

/// The same of a batch of pictures, on `device`: its mask counts from half of white on. Of latents
/// its `before`, `masked` and `references` are latents, too, and are shown as the pictures would
/// be.
[[nodiscard]] at::Tensor shown_beside(const data::Batch& batch, models::ShownInput input,
                                      const pipelines::LatentEncoder* encoder, at::Device device);

}  // namespace kinora::inference
