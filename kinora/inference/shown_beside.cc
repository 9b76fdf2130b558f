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

constexpr int kLeastWhite = 128;

/// Masks [B, 1, H, W] with the pixels of each latent as its channels, row by row: [B, side side, h,
/// w].
at::Tensor pixels_of_latents(const at::Tensor& masks, const at::Tensor& latents) {
  return at::pixel_unshuffle(masks, masks.size(2) / latents.size(2)).to(latents.device());
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
    case models::ShownInput::kInpaint: {
      const at::Tensor masked = drawn(pixels * (1.0 - masks));
      const at::Tensor places = at::upsample_nearest2d(masks, masked.sizes().slice(2));
      return at::cat({places.to(masked.device()), masked}, 1);
    }
    case models::ShownInput::kFill: {
      const at::Tensor masked = drawn(pixels * (1.0 - masks));
      return at::cat({masked, pixels_of_latents(masks, masked)}, 1);
    }
    case models::ShownInput::kReference:
      return drawn(pixels);
    case models::ShownInput::kEdit: {
      const at::Tensor given = drawn(pixels);
      return encoder == nullptr ? given : models::from_model_space(encoder->space(), given);
    }
    case models::ShownInput::kSubjects:  // shown_references()
    case models::ShownInput::kFrames:    // shown_frames.h
    case models::ShownInput::kFirstFrame:
      break;
  }
  KINORA_UNREACHABLE("[sample] unknown input");
}

at::Tensor shown_references(const at::Tensor& pixels, const at::Tensor& counts,
                            const pipelines::LatentEncoder* encoder) {
  const int64_t most = pixels.size(2);
  at::Tensor shown = pixels;
  if (encoder != nullptr) {
    const at::Tensor latents = encoder->encode(pixels.transpose(1, 2).flatten(0, 1)).mean;
    shown = latents.unflatten(0, {pixels.size(0), most}).transpose(1, 2);
  }
  const at::Tensor is_there = at::arange(most, shown.device()) <
                              counts.to(shown.device(), /*non_blocking=*/true).unsqueeze(1);
  return at::where(is_there.view({-1, 1, most, 1, 1}), shown, 0.0);
}

at::Tensor shown_beside(const data::Batch& batch, models::ShownInput input,
                        const pipelines::LatentEncoder* encoder, at::Device device) {
  switch (input) {
    case models::ShownInput::kPlain:
      return {};
    case models::ShownInput::kInpaint:
    case models::ShownInput::kFill: {
      const at::Tensor masks =
          (batch.mask.to(device, /*non_blocking=*/true) >= kLeastWhite).to(at::kFloat);
      return shown_beside(data::to_float(batch.images, device), masks, input, encoder);
    }
    case models::ShownInput::kEdit:
    case models::ShownInput::kReference:
      return shown_beside(data::to_float(batch.before, device), {}, input, encoder);
    case models::ShownInput::kSubjects:
      return shown_references(data::to_float(batch.references, device), batch.num_references,
                              encoder);
    case models::ShownInput::kFrames:
    case models::ShownInput::kFirstFrame:
      break;  // shown_frames.h
  }
  KINORA_UNREACHABLE("[train] unknown input");
}

}  // namespace kinora::inference
