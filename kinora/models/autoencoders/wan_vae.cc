#include "kinora/models/autoencoders/wan_vae.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/causal_layers.h"
#include "kinora/models/layers/clip_layers.h"

namespace kinora::models {
namespace {

constexpr int64_t kWanFramesDim = 2;

/// Of single frames, for what changes their sides.
ClipKernel frame_kernel() {
  return {.size = {1, 3, 3}, .time = {0, 0}, .edges = Edges::kZero, .of_images = true};
}

void add_middle(BandNet& net, int64_t channels) {
  net.add<CausalResidualLayer>("mid_block.resnets.0", channels, channels);
  net.add<OneFrameAttention>("mid_block.attentions.0", channels);
  net.add<CausalResidualLayer>("mid_block.resnets.1", channels, channels);
}

int64_t patch_channels(const WanVaeConfig& config) {
  return kPixelChannels * config.patch_size * config.patch_size;
}

/// Halves rows and columns, and frames where `frames` is 2; Net: a BandNet or ResampledSumLayer.
template <typename Net>
void add_halving(Net& net, const std::string& name, int64_t channels, bool halves_frames) {
  ClipKernel halving = frame_kernel();
  halving.stride = {1, 2, 2};
  halving.zeros_behind = true;
  net.template add<ConvLayer>(name, channels, channels, halving, "resample.1");
  if (halves_frames) {
    net.template add<FrameHalvingLayer>(name, channels);
  }
}

/// The reverse.
template <typename Net>
void add_doubling(Net& net, const std::string& name, int64_t channels, int64_t out_channels,
                  bool doubles_frames) {
  if (doubles_frames) {
    net.template add<LaterFramesDoublingLayer>(name, channels);
  }
  net.template add<UpsampleLayer>(name, channels, out_channels, 1, frame_kernel(), "resample.1");
}

/// Of 2.2.
void add_residual_encoder(BandNet& net, const WanVaeConfig& config) {
  int64_t channels = config.base_dim;
  net.add<CausalConvLayer>("conv_in", patch_channels(config), channels);
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    const bool halves = i < config.temporal_downsample.size();
    const bool halves_frames = halves && config.temporal_downsample[i];
    const int64_t width = config.base_dim * config.dim_mult[i];
    auto& level = net.add<ResampledSumLayer>(
        "down_blocks." + std::to_string(i),
        ResampledSumLayer::Resampling{.way = ResampledSumLayer::Way::kDown,
                                      .in_channels = channels,
                                      .out_channels = width,
                                      .frames = halves_frames ? 2 : 1,
                                      .sides = halves ? 2 : 1});
    for (int64_t j = 0; j < config.num_res_blocks; ++j) {
      level.add<CausalResidualLayer>("resnets." + std::to_string(j), channels, width);
      channels = width;
    }
    if (halves) {
      add_halving(level, "downsampler", width, halves_frames);
    }
  }
  add_middle(net, channels);
  net.add<CausalNormConvLayer>("", channels, 2 * config.z_dim);
}

void add_residual_decoder(BandNet& net, const WanVaeConfig& config) {
  const int64_t base = config.decoder_base_dim > 0 ? config.decoder_base_dim : config.base_dim;
  int64_t channels = base * config.dim_mult.back();
  net.add<CausalConvLayer>("conv_in", config.z_dim, channels);
  add_middle(net, channels);
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    const std::string block = "up_blocks." + std::to_string(i);
    const int64_t width = base * config.dim_mult[config.dim_mult.size() - 1 - i];
    const auto add_blocks = [&](auto& to, const std::string& prefix) {
      for (int64_t j = 0; j < config.num_res_blocks + 1; ++j) {
        to.template add<CausalResidualLayer>(prefix + "resnets." + std::to_string(j), channels,
                                             width);
        channels = width;
      }
    };
    if (i == config.temporal_downsample.size()) {  // has no shortcut
      add_blocks(net, block + ".");
      break;
    }
    const bool doubles_frames =
        config.temporal_downsample[config.temporal_downsample.size() - 1 - i];
    auto& level = net.add<ResampledSumLayer>(
        block, ResampledSumLayer::Resampling{.way = ResampledSumLayer::Way::kUp,
                                             .in_channels = channels,
                                             .out_channels = width,
                                             .frames = doubles_frames ? 2 : 1,
                                             .sides = 2});
    add_blocks(level, "");
    add_doubling(level, "upsampler", width, width, doubles_frames);
  }
  net.add<CausalNormConvLayer>("", channels, patch_channels(config));
}

void add_encoder(BandNet& net, const WanVaeConfig& config) {
  int64_t channels = config.base_dim;
  net.add<CausalConvLayer>("conv_in", patch_channels(config), channels);
  int64_t number = 0;  // of the blocks, which lie in one row
  const auto next = [&number] { return "down_blocks." + std::to_string(number++); };
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    const int64_t width = config.base_dim * config.dim_mult[i];
    for (int64_t j = 0; j < config.num_res_blocks; ++j) {
      net.add<CausalResidualLayer>(next(), channels, width);
      channels = width;
    }
    if (i == config.temporal_downsample.size()) {
      break;
    }
    add_halving(net, next(), channels, config.temporal_downsample[i]);
  }
  add_middle(net, channels);
  net.add<CausalNormConvLayer>("", channels, 2 * config.z_dim);
}

void add_decoder(BandNet& net, const WanVaeConfig& config) {
  const int64_t base = config.decoder_base_dim > 0 ? config.decoder_base_dim : config.base_dim;
  int64_t channels = base * config.dim_mult.back();
  net.add<CausalConvLayer>("conv_in", config.z_dim, channels);
  add_middle(net, channels);
  for (size_t i = 0; i < config.dim_mult.size(); ++i) {
    const std::string block = "up_blocks." + std::to_string(i);
    const int64_t width = base * config.dim_mult[config.dim_mult.size() - 1 - i];
    for (int64_t j = 0; j < config.num_res_blocks + 1; ++j) {
      net.add<CausalResidualLayer>(block + ".resnets." + std::to_string(j), channels, width);
      channels = width;
    }
    if (i == config.temporal_downsample.size()) {
      break;
    }
    add_doubling(net, block + ".upsamplers.0", channels, channels / 2,
                 config.temporal_downsample[config.temporal_downsample.size() - 1 - i]);
    channels /= 2;
  }
  net.add<CausalNormConvLayer>("", channels, patch_channels(config));
}

LatentSpace space_of(const WanVaeConfig& config) {
  KINORA_CHECK(config.dim_mult.size() == config.temporal_downsample.size() + 1 &&
                   config.num_res_blocks > 0 && config.base_dim > 0 && config.z_dim > 0 &&
                   config.patch_size > 0,
               kConfig,
               "[wan_vae] there must be channels and blocks, and one halving less than "
               "multipliers, got ",
               config.base_dim, ", ", config.z_dim, " and ", config.num_res_blocks, ", ",
               config.temporal_downsample.size(), " and ", config.dim_mult.size());
  for (const auto& [name, values] : {std::pair{"latents_mean", &config.latents_mean},
                                     std::pair{"latents_std", &config.latents_std}}) {
    KINORA_CHECK(std::ssize(*values) == config.z_dim, kConfig, "[wan_vae] ", name,
                 " must have one value for each of ", config.z_dim, " channels, got ",
                 values->size());
  }
  LatentSpace space;
  space.channels = config.z_dim;
  space.compression = config.patch_size << config.temporal_downsample.size();
  space.frame_compression = int64_t{1} << std::ranges::count(config.temporal_downsample, true);
  space.first_frame_alone = true;
  space.shift = config.latents_mean;
  space.scale.clear();
  for (const double std : config.latents_std) {
    space.scale.push_back(1.0 / std);
  }
  return space;
}

/// The largest number of latent frames, of all halved again and again, with which `fits`; 1 if none
/// does.
template <typename Fits>
int64_t piece_of(int64_t latents, const Fits& fits) {
  int64_t piece = latents;
  while (piece > 1 && !fits(piece)) {
    piece = (piece + 1) / 2;
  }
  return piece;
}

/// `total` in pieces: `first`, then `others`, the last one what is left.
std::vector<int64_t> in_pieces(int64_t total, int64_t first, int64_t others) {
  std::vector<int64_t> pieces = {std::min(total, first)};
  for (int64_t left = total - pieces.front(); left > 0; left -= pieces.back()) {
    pieces.push_back(std::min(left, others));
  }
  return pieces;
}

}  // namespace

WanVae::WanVae(const WanVaeConfig& config)
    : ClipAutoencoder(space_of(config)),
      patch_(config.patch_size),
      encoder_(space().compression / config.patch_size),
      decoder_(1),
      quant_conv_(nn::ConvShape::same(2 * config.z_dim, 2 * config.z_dim, 1, 3)),
      post_quant_conv_(nn::ConvShape::same(config.z_dim, config.z_dim, 1, 3)) {
  if (config.is_residual) {
    add_residual_encoder(encoder_, config);
    add_residual_decoder(decoder_, config);
  } else {
    add_encoder(encoder_, config);
    add_decoder(decoder_, config);
  }
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
  add_child("quant_conv", quant_conv_);
  add_child("post_quant_conv", post_quant_conv_);
}

int64_t WanVae::decode_piece(const ClipSize& latents) const {
  return piece_of(latents.frames,
                  [&](int64_t frames) { return decoder_.piece_fits(latents, frames, limits()); });
}

nn::BandPlan WanVae::decode_plan(const ClipSize& latents, bool with_gradients) const {
  return with_gradients ? decoder_.plan(latents, limits(), true)
                        : decoder_.piece_plan(latents, decode_piece(latents), limits());
}

LatentMoments WanVae::encode_clip(const at::Tensor& clip) {
  const at::Tensor pixels = patched(clip, patch_);
  if (at::GradMode::is_enabled()) {
    return moments_of(quant_conv_.forward(encoder_.forward(pixels, limits())));
  }
  const int64_t frames = pixels.size(kWanFramesDim);
  const int64_t unit = space().frame_compression;
  const int64_t piece = piece_of(latent_frames(space(), frames), [&](int64_t latents) {
    return encoder_.piece_fits(clip_size(pixels), latents * unit, limits());
  });
  return moments_of(quant_conv_.forward(encoder_.forward_pieces(
      pixels, in_pieces(frames, 1 + (piece - 1) * unit, piece * unit), limits())));
}

at::Tensor WanVae::decode_clip(const at::Tensor& raw) {
  const at::Tensor latents = post_quant_conv_.forward(raw);
  if (at::GradMode::is_enabled()) {
    return unpatched(decoder_.forward(latents, limits()), patch_);
  }
  const int64_t piece = decode_piece(clip_size(latents));
  return unpatched(
      decoder_.forward_pieces(latents, in_pieces(raw.size(kWanFramesDim), piece, piece), limits()),
      patch_);
}

}  // namespace kinora::models
