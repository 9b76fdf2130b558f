#include "kinora/models/autoencoders/image_autoencoder.h"

#include <c10/core/ScalarType.h>

#include <functional>

namespace kinora::models {
namespace {

/// The frames of clips [B, C, T, H, W] as images [B T, C, H, W].
at::Tensor to_images(const at::Tensor& x) {
  return x.dim() == 5 ? x.transpose(1, 2).flatten(0, 1) : x;
}

/// The reverse, for frames of `given`; undefined stays so.
at::Tensor like_given(const at::Tensor& images, const at::Tensor& given) {
  return given.dim() == 5 && images.defined()
             ? images.unflatten(0, {given.size(0), given.size(2)}).transpose(1, 2)
             : images;
}

}  // namespace

LatentMoments ImageAutoencoder::encode(const at::Tensor& pixels) {
  check_picture_shape(pixels, "pixels", kPixelChannels, space().compression);
  const auto type = weight_type();
  const auto result_type = c10::promoteTypes(type, at::kFloat);
  const LatentMoments raw =
      encode_images(to_images(pixels).to(type).contiguous(at::MemoryFormat::ChannelsLast));
  const LatentMoments moments =
      to_model_space(space(), {.mean = raw.mean.to(result_type),
                               .std = raw.std.defined() ? raw.std.to(result_type) : raw.std});
  return {.mean = like_given(moments.mean, pixels), .std = like_given(moments.std, pixels)};
}

at::Tensor ImageAutoencoder::decode(const at::Tensor& latents) {
  check_picture_shape(latents, "latents", space().channels, 1);
  const auto type = weight_type();
  const auto result_type = c10::promoteTypes(type, at::kFloat);
  const at::Tensor raw = from_model_space(space(), to_images(latents).to(result_type)).to(type);
  const at::Tensor pixels = decode_images(raw.contiguous(at::MemoryFormat::ChannelsLast));
  return like_given(pixels.to(result_type), latents);
}

at::ScalarType ImageAutoencoder::weight_type() {
  return named_parameters().front().parameter->value.scalar_type();
}

}  // namespace kinora::models
