#include "kinora/models/autoencoders/autoencoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <string>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::models {
namespace {

/// One value a channel, to be spread over `like` [B, C, ...]. Written where it is read: a copy from
/// the host would have it wait for the device.
at::Tensor per_channel(const std::vector<double>& values, const at::Tensor& like) {
  const auto count = static_cast<int64_t>(values.size());
  KINORA_CHECK(count == 1 || count == like.size(1), kShape, "[autoencoder] latents must have ",
               count, " channels, got ", like.sizes());
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = count;
  std::vector<at::Tensor> each;
  for (const double value : values) {
    each.push_back(at::full({1}, value, like.options().requires_grad(false)));
  }
  return at::cat(each).view(shape);
}

int64_t shared_frames(const LatentSpace& space) {
  return space.chunks_share_frame ? 1 : 0;
}

/// Latent frames of clips that fit, else of those a little shorter.
int64_t floor_latents(const LatentSpace& space, int64_t frames) {
  const int64_t f = space.frame_compression;
  const auto of_chunk = [&](int64_t n) { return space.first_frame_alone ? ceil_div(n, f) : n / f; };
  if (frames == 1 || space.chunk_frames == 0) {
    return frames == 1 ? 1 : of_chunk(frames);
  }
  const int64_t shared = shared_frames(space);
  const int64_t own = space.chunk_frames - shared;  // frames of a chunk that no other has before it
  const int64_t rest = (frames - shared) % own;
  return (frames - shared) / own * of_chunk(space.chunk_frames) +
         (rest > 0 ? of_chunk(rest + shared) : 0);
}

}  // namespace

void Autoencoder::set_decode_noise(const DecodeNoise& noise) {
  KINORA_CHECK(noise.level == 0.0 && noise.mixed == 0.0, kConfig,
               "[autoencoder] autoencoder.decode_level and decode_noise must be 0 for a decoder "
               "that is not told how noisy latents are, got ",
               noise.level, " and ", noise.mixed, ". Hint: LTX-Video's is from 0.9.1 on");
}

void Autoencoder::average_gradients() {
  const at::NoGradGuard no_grad;
  for (const nn::NamedParameter& named : named_parameters()) {
    if (named.parameter->grad.defined()) {
      const at::Tensor mean = named.parameter->grad.contiguous();
      limits_.ranks.all_reduce(mean, comm::Reduction::kMean);
      named.parameter->grad.copy_(mean);
    }
  }
}

bool Autoencoder::divides(int64_t latent_rows, int64_t ranks) {
  constexpr int64_t kRowsARank = 4;
  return latent_rows >= kRowsARank * ranks;
}

void check_picture_shape(const at::Tensor& x, const char* what, int64_t channels, int64_t unit) {
  const bool fits = (x.dim() == 4 || x.dim() == 5) && x.size(1) == channels &&
                    x.size(-1) % unit == 0 && x.size(-2) % unit == 0 && x.numel() > 0;
  KINORA_CHECK(fits, kShape, "[autoencoder] ", what, " must have shape [B, ", channels,
               ", (T,) H, W], H and W multiples of ", unit, ", got ", x.sizes());
}

int64_t latent_frames(const LatentSpace& space, int64_t frames) {
  const auto fits = [&](int64_t count) {
    return count > 0 && pixel_frames(space, floor_latents(space, count)) == count;
  };
  if (!fits(frames)) {
    int64_t less = frames - 1;
    while (less > 0 && !fits(less)) {
      --less;
    }
    int64_t more = frames + 1;
    while (!fits(more)) {
      ++more;
    }
    throw_error(ErrorKind::kShape, "[autoencoder] clips of ", frames,
                " frames do not become whole latent frames. Hint: ",
                less > 0 ? std::to_string(less) + " or " : "", more, " frames.");
  }
  return floor_latents(space, frames);
}

int64_t pixel_frames(const LatentSpace& space, int64_t latents) {
  const int64_t f = space.frame_compression;
  const auto of_chunk = [&](int64_t n) {
    return space.first_frame_alone && n > 0 ? (n - 1) * f + 1 : n * f;
  };
  if (latents == 1 || space.chunk_frames == 0) {
    return latents == 1 ? 1 : of_chunk(latents);
  }
  const int64_t shared = shared_frames(space);
  const int64_t whole = floor_latents(space, space.chunk_frames);
  const int64_t rest = latents % whole;
  return latents / whole * (space.chunk_frames - shared) +
         (rest > 0 ? of_chunk(rest) - shared : 0) + shared;
}

at::Tensor to_model_space(const LatentSpace& space, const at::Tensor& raw) {
  return (raw - per_channel(space.shift, raw)) * per_channel(space.scale, raw);
}

at::Tensor from_model_space(const LatentSpace& space, const at::Tensor& latents) {
  return latents / per_channel(space.scale, latents) + per_channel(space.shift, latents);
}

at::Tensor as_shown(const LatentSpace& space, const at::Tensor& latents) {
  return space.inverts_shown
             ? latents / per_channel(space.scale, latents) / per_channel(space.scale, latents)
             : latents;
}

LatentMoments to_model_space(const LatentSpace& space, const LatentMoments& raw) {
  return {.mean = to_model_space(space, raw.mean),
          .std = raw.std.defined() ? raw.std * per_channel(space.scale, raw.std) : raw.std};
}

}  // namespace kinora::models
