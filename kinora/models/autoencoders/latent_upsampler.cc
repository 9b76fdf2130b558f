#include "kinora/models/autoencoders/latent_upsampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/std_mean.h>

#include <tuple>

#include "kinora/core/error.h"

// Shapes: B clips, C channels, T frames, H rows, W columns.

namespace kinora::models {
namespace {

constexpr int64_t kUpsamplerGroups = 32;
constexpr double kUpsamplerEpsilon = 1e-5;
constexpr int64_t kUpsamplerScale = 2;
// Of tone mapping: at its fullest, its slope and how much of the largest values it takes.
constexpr double kFullestTones = 0.75;
constexpr double kToneSlope = 4.0;
constexpr double kToneShare = 0.8;

nn::ConvShape around(int64_t in_channels, int64_t out_channels, int64_t dims) {
  return nn::ConvShape::same(in_channels, out_channels, 3, static_cast<size_t>(dims));
}

const LatentUpsamplerConfig& checked(const LatentUpsamplerConfig& config) {
  KINORA_CHECK(config.dims == 2 || config.dims == 3, kConfig,
               "[upsampler] dims must be 2 or 3, got ", config.dims);
  return config;
}

/// [B, C, T, H, W] -> [B T, C, H, W], and back.
at::Tensor as_frames(const at::Tensor& clips) {
  return clips.transpose(1, 2).flatten(0, 1);
}
at::Tensor as_clips(const at::Tensor& frames, int64_t batch) {
  return frames.unflatten(0, {batch, -1}).transpose(1, 2);
}

/// Mean and deviation of each channel of a clip: [B, C, 1, 1, 1].
std::tuple<at::Tensor, at::Tensor> statistics(const at::Tensor& x) {
  auto [deviation, mean] =
      at::std_mean(x, at::IntArrayRef({2, 3, 4}), /*unbiased=*/true, /*keepdim=*/true);
  return {mean, deviation};
}

}  // namespace

UpsamplerBlock::UpsamplerBlock(int64_t channels, int64_t dims)
    : conv1_(around(channels, channels, dims)),
      norm1_(kUpsamplerGroups, channels, kUpsamplerEpsilon),
      conv2_(around(channels, channels, dims)),
      norm2_(kUpsamplerGroups, channels, kUpsamplerEpsilon) {
  add_child("conv1", conv1_);
  add_child("norm1", norm1_);
  add_child("conv2", conv2_);
  add_child("norm2", norm2_);
}

at::Tensor UpsamplerBlock::forward(const at::Tensor& x) const {
  return at::silu(x + norm2_.forward(conv2_.forward(norm1_.forward_silu(conv1_.forward(x)))));
}

LatentUpsampler::LatentUpsampler(const LatentUpsamplerConfig& config)
    : config_(checked(config)),
      initial_conv_(around(config.in_channels, config.mid_channels, config.dims)),
      initial_norm_(kUpsamplerGroups, config.mid_channels, kUpsamplerEpsilon),
      upsampler_(
          around(config.mid_channels, kUpsamplerScale * kUpsamplerScale * config.mid_channels, 2)),
      final_conv_(around(config.mid_channels, config.in_channels, config.dims)) {
  add_child("initial_conv", initial_conv_);
  add_child("initial_norm", initial_norm_);
  add_blocks("res_blocks.", res_blocks_);
  add_child("upsampler.0", upsampler_);
  add_blocks("post_upsample_res_blocks.", post_upsample_res_blocks_);
  add_child("final_conv", final_conv_);
}

void LatentUpsampler::add_blocks(const std::string& name, Blocks& blocks) {
  for (int64_t i = 0; i < config_.num_blocks_per_stage; ++i) {
    blocks.push_back(std::make_unique<UpsamplerBlock>(config_.mid_channels, config_.dims));
    add_child(name + std::to_string(i), *blocks.back());
  }
}

at::Tensor LatentUpsampler::forward(const at::Tensor& raw) const {
  KINORA_CHECK(raw.dim() == 5 && raw.size(1) == config_.in_channels, kShape,
               "[upsampler] latents must have shape [B, ", config_.in_channels, ", T, H, W], got ",
               raw.sizes());
  const int64_t batch = raw.size(0);
  const bool by_frames = config_.dims == 2;
  at::Tensor x = by_frames ? as_frames(raw) : raw;
  x = initial_norm_.forward_silu(initial_conv_.forward(x));
  for (const auto& block : res_blocks_) {
    x = block->forward(x);
  }
  x = at::pixel_shuffle(upsampler_.forward(by_frames ? x : as_frames(x)), kUpsamplerScale);
  x = by_frames ? x : as_clips(x, batch);
  for (const auto& block : post_upsample_res_blocks_) {
    x = block->forward(x);
  }
  x = final_conv_.forward(x);
  return by_frames ? as_clips(x, batch) : x;
}

at::Tensor upsampled(const LatentUpsampler& upsampler, const LatentSpace& space,
                     const at::Tensor& latents, const UpsampleTuning& tuning) {
  const at::NoGradGuard no_grad;
  const at::Tensor raw = from_model_space(space, latents);
  at::Tensor large = upsampler.forward(raw).to(raw.scalar_type());
  if (tuning.adain > 0.0) {
    const auto [mean, deviation] = statistics(raw);
    const auto [own_mean, own_deviation] = statistics(large);
    large = at::lerp(large, (large - own_mean) / own_deviation * deviation + mean, tuning.adain);
  }
  if (tuning.tones > 0.0) {
    const double scale = kFullestTones * tuning.tones;
    large =
        large * (1.0 - kToneShare * scale * at::sigmoid(kToneSlope * scale * (large.abs() - 1.0)));
  }
  return to_model_space(space, large);
}

}  // namespace kinora::models
