#include "kinora/inference/shown_beside.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <ATen/ops/upsample_nearest2d.h>

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
    case models::ShownInput::kFrames:
    case models::ShownInput::kFirstFrame:
      break;  // shown_frames.h
  }
  KINORA_UNREACHABLE("[sample] unknown input");
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
    case models::ShownInput::kFrames:
    case models::ShownInput::kFirstFrame:
      break;  // shown_frames.h
  }
  KINORA_UNREACHABLE("[train] unknown input");
}

}  // namespace kinora::inference
