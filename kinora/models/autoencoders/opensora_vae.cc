#include "kinora/models/autoencoders/opensora_vae.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <functional>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

constexpr int64_t kFramesDim = 2;

/// Frames of images at once where memory is not limited.
constexpr int64_t kMicroBatch = 4;

LatentSpace space_of(const OpenSoraVaeConfig& config) {
  LatentSpace space;
  space.channels = config.temporal.channels;
  space.compression = int64_t{1} << (config.spatial.block_out_channels.size() - 1);
  space.first_frame_alone = true;
  space.chunk_frames = config.micro_frame_size;
  space.shift = config.shift;
  space.scale.clear();
  for (const double scale : config.scale) {
    space.scale.push_back(1.0 / scale);
  }
  space.frame_compression = 1;
  for (const bool halves : config.temporal.temporal_downsample) {
    space.frame_compression *= halves ? 2 : 1;
  }
  KINORA_CHECK(config.spatial.latent_channels == config.temporal.channels, kConfig,
               "[opensora_vae] the temporal autoencoder must have the spatial one's ",
               config.spatial.latent_channels, " channels, got ", config.temporal.channels);
  KINORA_CHECK(
      config.micro_frame_size > 0 && (config.micro_frame_size - 1) % space.frame_compression == 0,
      kConfig, "[opensora_vae] micro_frame_size must be 1 + a multiple of ",
      space.frame_compression, ", got ", config.micro_frame_size);
  return space;
}

/// What `function` makes of at most `count` frames at a time.
at::Tensor over_frames(const at::Tensor& x, int64_t count,
                       const std::function<at::Tensor(const at::Tensor& frames)>& function) {
  std::vector<at::Tensor> results;
  for (int64_t begin = 0; begin < x.size(kFramesDim); begin += count) {
    results.push_back(
        function(x.narrow(kFramesDim, begin, std::min(count, x.size(kFramesDim) - begin))));
  }
  return at::cat(results, kFramesDim);
}

}  // namespace

OpenSoraVae::OpenSoraVae(const OpenSoraVaeConfig& config)
    : ClipAutoencoder(space_of(config)), spatial_(config.spatial), temporal_(config.temporal) {
  add_child("spatial_vae.module", spatial_);
  add_child("temporal_vae", temporal_);
}

LatentMoments OpenSoraVae::encode_clip(const at::Tensor& pixels) {
  spatial_.set_memory_budget(limits().bytes);
  spatial_.use_ranks(limits().ranks);
  const at::Tensor spatial =
      over_frames(pixels, limits().bytes > 0 ? 1 : kMicroBatch, [&](const at::Tensor& frames) {
        return spatial_.encode(frames).mean.to(pixels.scalar_type());
      });
  return moments_of(over_frames(spatial, space().chunk_frames, [&](const at::Tensor& chunk) {
    // Zeros come first, so that frames are whole multiples.
    const int64_t f = space().frame_compression;
    const int64_t zeros = (f - chunk.size(kFramesDim) % f) % f;
    return temporal_.encode(at::constant_pad_nd(chunk, {0, 0, 0, 0, zeros, 0}), limits());
  }));
}

at::Tensor OpenSoraVae::decode_clip(const at::Tensor& raw) {
  spatial_.set_memory_budget(limits().bytes);
  spatial_.use_ranks(limits().ranks);
  const int64_t chunk_latents = latent_frames(space(), space().chunk_frames);
  const at::Tensor spatial = over_frames(raw, chunk_latents, [&](const at::Tensor& chunk) {
    const at::Tensor frames = temporal_.decode(chunk, limits());
    const int64_t count = pixel_frames(space(), chunk.size(kFramesDim));
    return frames.narrow(kFramesDim, frames.size(kFramesDim) - count, count);
  });
  return over_frames(spatial, limits().bytes > 0 ? 1 : kMicroBatch,
                     [&](const at::Tensor& frames) { return spatial_.decode(frames); });
}

}  // namespace kinora::models
