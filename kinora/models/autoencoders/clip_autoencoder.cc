#include "kinora/models/autoencoders/clip_autoencoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <c10/core/ScalarType.h>

namespace kinora::models {
namespace {

/// Images as clips of one frame.
at::Tensor to_clip(const at::Tensor& x) {
  return x.dim() == 4 ? x.unsqueeze(2) : x;
}

/// The reverse, where `given` was an image; undefined stays so.
at::Tensor like_given_clip(const at::Tensor& clip, const at::Tensor& given) {
  return given.dim() == 4 && clip.defined() ? clip.squeeze(2) : clip;
}

}  // namespace

LatentMoments ClipAutoencoder::encode(const at::Tensor& pixels) {
  check_picture_shape(pixels, "pixels", kPixelChannels, space().compression);
  const at::Tensor clip = to_clip(pixels);
  (void)latent_frames(space(), clip.size(2));
  const auto type = weight_type();
  const auto result_type = c10::promoteTypes(type, at::kFloat);
  const LatentMoments raw = encode_clip(clip.to(type).contiguous(at::MemoryFormat::ChannelsLast3d));
  const LatentMoments moments =
      to_model_space(space(), {.mean = raw.mean.to(result_type),
                               .std = raw.std.defined() ? raw.std.to(result_type) : raw.std});
  return {.mean = like_given_clip(moments.mean, pixels),
          .std = like_given_clip(moments.std, pixels)};
}

at::Tensor ClipAutoencoder::decode(const at::Tensor& latents) {
  check_picture_shape(latents, "latents", space().channels, 1);
  const auto type = weight_type();
  const auto result_type = c10::promoteTypes(type, at::kFloat);
  const at::Tensor raw = from_model_space(space(), to_clip(latents).to(result_type)).to(type);
  const at::Tensor pixels = decode_clip(raw.contiguous(at::MemoryFormat::ChannelsLast3d));
  return like_given_clip(pixels.to(result_type), latents);
}

at::ScalarType ClipAutoencoder::weight_type() {
  return named_parameters().front().parameter->value.scalar_type();
}

LatentMoments moments_of(const at::Tensor& values) {
  const auto parts = values.to(c10::promoteTypes(values.scalar_type(), at::kFloat)).chunk(2, 1);
  return {.mean = parts[0],
          .std = at::exp(parts[1].clamp(kLeastLogVariance, kMostLogVariance) * 0.5)};
}

}  // namespace kinora::models
