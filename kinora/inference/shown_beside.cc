#include "kinora/inference/shown_beside.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/where.h>

#include "kinora/core/error.h"
#include "kinora/data/normalise.h"

namespace kinora::inference {
namespace {

/// Masks [B, 1, H, W] with the pixels of each latent as its channels, row by row: [B, side side, h,
/// w].
at::Tensor pixels_of_latents(const at::Tensor& masks, const at::Tensor& latents) {
  return at::pixel_unshuffle(masks, masks.size(2) / latents.size(2)).to(latents.device());
}

/// A mask and what it leaves of the pictures, in pixels or latents.
at::Tensor with_mask(const at::Tensor& masked, const at::Tensor& masks, models::ShownInput input) {
  if (input == models::ShownInput::kFill) {
    return at::cat({masked, pixels_of_latents(masks, masked)}, 1);
  }
  const at::Tensor places = at::upsample_nearest2d(masks, masked.sizes().slice(2));
  return at::cat({places.to(masked.device()), masked}, 1);
}

/// A picture that is changed, of which `latents` were made: of kEdit not scaled.
at::Tensor as_given(const at::Tensor& latents, models::ShownInput input,
                    const pipelines::LatentEncoder* encoder) {
  const bool is_scaled = encoder != nullptr && input == models::ShownInput::kEdit;
  return is_scaled ? models::from_model_space(encoder->space(), latents) : latents;
}

/// The first counts[b] of `shown` [B, C, N, h, w], and zeros behind them.
at::Tensor first_references(const at::Tensor& shown, const at::Tensor& counts) {
  const int64_t most = shown.size(2);
  const at::Tensor is_there = at::arange(most, shown.device()) <
                              counts.to(shown.device(), /*non_blocking=*/true).unsqueeze(1);
  return at::where(is_there.view({-1, 1, most, 1, 1}), shown, 0.0);
}

bool is_latent(const at::Tensor& pictures) {
  return pictures.scalar_type() == at::kFloat;
}

}  // namespace

at::Tensor shown_beside(const at::Tensor& pixels, const at::Tensor& masks, models::ShownInput input,
                        const pipelines::LatentEncoder* encoder) {
  const auto drawn = [encoder](const at::Tensor& pictures) {
    return encoder == nullptr ? pictures : encoder->encode(pictures).mean;
  };
  switch (input) {
    case models::ShownInput::kPlain:
      return {};
    case models::ShownInput::kInpaint:
    case models::ShownInput::kFill:
      return with_mask(drawn(pixels * (1.0 - masks)), masks, input);
    case models::ShownInput::kReference:
    case models::ShownInput::kEdit:
      return as_given(drawn(pixels), input, encoder);
    case models::ShownInput::kSubjects:  // shown_references()
    case models::ShownInput::kFrames:    // shown_frames.h
    case models::ShownInput::kFirstFrame:
    case models::ShownInput::kMarkedFirstFrame:
      break;
  }
  KINORA_UNREACHABLE("[sample] unknown input");
}

at::Tensor shown_references(const at::Tensor& pixels, const at::Tensor& counts,
                            const pipelines::LatentEncoder* encoder) {
  if (encoder == nullptr) {
    return first_references(pixels, counts);
  }
  const at::Tensor latents = encoder->encode(pixels.transpose(1, 2).flatten(0, 1)).mean;
  return first_references(latents.unflatten(0, {pixels.size(0), pixels.size(2)}).transpose(1, 2),
                          counts);
}

at::Tensor shown_beside(const data::Batch& batch, models::ShownInput input,
                        const pipelines::LatentEncoder* encoder, at::Device device) {
  switch (input) {
    case models::ShownInput::kPlain:
      return {};
    case models::ShownInput::kInpaint:
    case models::ShownInput::kFill: {
      const at::Tensor masks = data::to_mask(batch.mask, device);
      return batch.masked.defined()
                 ? with_mask(data::to_float(batch.masked, device), masks, input)
                 : shown_beside(data::to_float(batch.images, device), masks, input, encoder);
    }
    case models::ShownInput::kEdit:
    case models::ShownInput::kReference: {
      const at::Tensor before = data::to_float(batch.before, device);
      return is_latent(batch.before) ? as_given(before, input, encoder)
                                     : shown_beside(before, {}, input, encoder);
    }
    case models::ShownInput::kSubjects:
      return shown_references(data::to_float(batch.references, device), batch.num_references,
                              is_latent(batch.references) ? nullptr : encoder);
    case models::ShownInput::kFrames:
    case models::ShownInput::kFirstFrame:
    case models::ShownInput::kMarkedFirstFrame:
      break;  // shown_frames.h
  }
  KINORA_UNREACHABLE("[train] unknown input");
}

}  // namespace kinora::inference
