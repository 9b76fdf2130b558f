#include "kinora/models/autoencoders/ltx_vae.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/layers/clip_layers.h"

namespace kinora::models {
namespace {

constexpr int64_t kResidualVectors = 4;  // of a residual layer
constexpr int64_t kLastVectors = 2;      // of the last one

LtxStep step_of(LtxHalving halving) {
  switch (halving) {
    case LtxHalving::kConv:
    case LtxHalving::kSpatiotemporal:
      return {.frames = 2, .sides = 2};
    case LtxHalving::kSpatial:
      return {.frames = 1, .sides = 2};
    case LtxHalving::kTemporal:
      return {.frames = 2, .sides = 1};
  }
  KINORA_UNREACHABLE("[ltx_vae] an unknown halving");
}

/// Levels of the encoder.
size_t encoder_levels(const LtxVaeConfig& config) {
  return config.block_out_channels.size() - (config.widens_by_halving ? 1 : 0);
}

/// By what all levels of the encoder change clips.
LtxStep step_of_all(const LtxVaeConfig& config) {
  LtxStep all;
  for (size_t i = 0; i < encoder_levels(config); ++i) {
    if (config.spatio_temporal_scaling[i]) {
      const LtxStep step = step_of(config.downsample_type[i]);
      all.frames *= step.frames;
      all.sides *= step.sides;
    }
  }
  return all;
}

/// kConfig unless `values` has so many entries.
template <typename T>
void check_count(const std::vector<T>& values, size_t wanted, const char* name) {
  KINORA_CHECK(values.size() >= wanted, kConfig, "[ltx_vae] ", name, " must have ", wanted,
               " entries, got ", values.size());
}

void check_ltx_lists(const LtxVaeConfig& config) {
  KINORA_CHECK(config.block_out_channels.size() > (config.widens_by_halving ? 1 : 0) &&
                   !config.decoder_block_out_channels.empty(),
               kConfig, "[ltx_vae] there must be levels on both sides, got ",
               config.block_out_channels.size(), " and ", config.decoder_block_out_channels.size(),
               " widths");
  const size_t levels = encoder_levels(config);
  const size_t decoder_levels = config.decoder_block_out_channels.size();
  check_count(config.layers_per_block, levels + 1, "layers_per_block");
  check_count(config.spatio_temporal_scaling, levels, "spatio_temporal_scaling");
  check_count(config.downsample_type, levels, "downsample_type");
  check_count(config.decoder_layers_per_block, decoder_levels + 1, "decoder_layers_per_block");
  check_count(config.decoder_spatio_temporal_scaling, decoder_levels,
              "decoder_spatio_temporal_scaling");
  check_count(config.decoder_inject_noise, decoder_levels + 1, "decoder_inject_noise");
  check_count(config.upsample_residual, decoder_levels, "upsample_residual");
  check_count(config.upsample_factor, decoder_levels, "upsample_factor");
  for (const int64_t factor : config.upsample_factor) {
    KINORA_CHECK(factor > 0 && 8 % factor == 0, kConfig,
                 "[ltx_vae] upsample_factor must be 1, 2, 4 or 8, got ", factor);
  }
}

LatentSpace space_of(const LtxVaeConfig& config) {
  check_ltx_lists(config);
  const LtxStep all = step_of_all(config);
  int64_t doubled = 1;
  for (size_t i = 0; i < config.decoder_block_out_channels.size(); ++i) {
    doubled *= config.decoder_spatio_temporal_scaling[i] ? 2 : 1;
  }
  KINORA_CHECK(doubled == all.frames && doubled == all.sides, kConfig,
               "[ltx_vae] the decoder must make frames and sides as many times larger as the "
               "encoder makes them smaller, ",
               all.frames, " and ", all.sides, " times, got ", doubled);
  LatentSpace space{.channels = config.latent_channels,
                    .compression = config.patch_size * all.sides,
                    .frame_compression = all.frames,
                    .first_frame_alone = true,
                    .scale = {config.scaling_factor},
                    .shift = {0.0}};
  if (!config.latents_mean.empty() || !config.latents_std.empty()) {
    for (const auto& [name, values] : {std::pair{"latents_mean", &config.latents_mean},
                                       std::pair{"latents_std", &config.latents_std}}) {
      KINORA_CHECK(std::ssize(*values) == config.latent_channels, kConfig, "[ltx_vae] ", name,
                   " must have one value for each of ", config.latent_channels, " channels, got ",
                   values->size());
    }
    space.shift = config.latents_mean;
    space.scale.clear();
    for (const double std : config.latents_std) {
      space.scale.push_back(config.scaling_factor / std);
    }
  }
  return space;
}

std::string numbered_name(const std::string& list, size_t number) {
  return list + "." + std::to_string(number);
}

}  // namespace

LtxVae::LtxVae(const LtxVaeConfig& config)
    : ClipAutoencoder(space_of(config)),
      latent_channels_(config.latent_channels),
      patch_(config.patch_size),
      encoder_(space().compression),
      decoder_(1) {
  if (config.timestep_conditioning) {
    level_ = std::make_unique<LtxNoiseLevel>();
    add_child("decoder", *level_);
  }
  add_encoder(config);
  add_decoder(config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
}

const LtxLevelEmbedder* LtxVae::embedder(const std::string& block, int64_t channels,
                                         int64_t vectors) {
  if (level_ == nullptr) {
    return nullptr;
  }
  embedders_.push_back(std::make_unique<LtxLevelEmbedder>(*level_, channels, vectors));
  add_child("decoder." + block + "time_embedder", *embedders_.back());
  return embedders_.back().get();
}

void LtxVae::add_encoder(const LtxVaeConfig& config) {
  const LtxResidualOptions options{.causal = config.encoder_causal,
                                   .shortcut_epsilon = config.resnet_norm_eps};
  const std::vector<int64_t>& widths = config.block_out_channels;
  int64_t channels = widths.front();
  encoder_.add<LtxPatchingLayer>("", patch_);
  encoder_.add<ConvLayer>("conv_in", kPixelChannels * patch_ * patch_, channels,
                          ltx_kernel(config.encoder_causal));
  for (size_t i = 0; i < encoder_levels(config); ++i) {
    const std::string block = numbered_name("down_blocks", i);
    const int64_t width =
        config.widens_by_halving || i + 1 < widths.size() ? widths[i + 1] : widths[i];
    for (int64_t j = 0; j < config.layers_per_block[i]; ++j) {
      encoder_.add<LtxResidualLayer>(numbered_name(block + ".resnets", static_cast<size_t>(j)),
                                     channels, channels, options);
    }
    const bool halves = config.spatio_temporal_scaling[i];
    const bool folds =
        config.widens_by_halving && halves && config.downsample_type[i] != LtxHalving::kConv;
    if (folds) {
      encoder_.add<LtxFoldingLayer>(block + ".downsamplers.0", channels, width,
                                    step_of(config.downsample_type[i]), config.encoder_causal);
    } else {
      KINORA_CHECK(channels == width || !config.widens_by_halving, kConfig, "[ltx_vae] level ", i,
                   " must keep its ", channels, " channels, since nothing in it widens them, got ",
                   width);
      if (halves) {
        ClipKernel halving = ltx_kernel(config.encoder_causal);
        halving.stride = {2, 2, 2};
        encoder_.add<ConvLayer>(block + ".downsamplers.0", channels, channels, halving);
      }
      if (channels != width) {
        encoder_.add<LtxResidualLayer>(block + ".conv_out", channels, width, options);
      }
    }
    channels = width;
  }
  for (int64_t j = 0; j < config.layers_per_block.back(); ++j) {
    encoder_.add<LtxResidualLayer>(numbered_name("mid_block.resnets", static_cast<size_t>(j)),
                                   channels, channels, options);
  }
  // Of all channels one log variance.
  encoder_.add<LtxNormConvLayer>("", channels, config.latent_channels + 1, config.encoder_causal);
}

void LtxVae::add_decoder(const LtxVaeConfig& config) {
  const size_t levels = config.decoder_block_out_channels.size();
  // Lists are in the encoder's order.
  const auto back = [](const auto& values, size_t number) {
    return values[values.size() - 1 - number];
  };
  const auto add_residual = [&](const std::string& name, int64_t channels, size_t number,
                                const LtxLevelEmbedder* level) {
    decoder_.add<LtxResidualLayer>(
        name, channels, channels,
        LtxResidualOptions{.causal = config.decoder_causal,
                           .shortcut_epsilon = config.resnet_norm_eps,
                           .level = level,
                           .noise_name = back(config.decoder_inject_noise, number)
                                             ? "decoder." + name
                                             : std::string()});
  };
  int64_t channels = config.decoder_block_out_channels.back();
  decoder_.add<ConvLayer>("conv_in", config.latent_channels, channels,
                          ltx_kernel(config.decoder_causal));
  const LtxLevelEmbedder* level = embedder("mid_block.", channels, kResidualVectors);
  for (int64_t j = 0; j < back(config.decoder_layers_per_block, 0); ++j) {
    add_residual(numbered_name("mid_block.resnets", static_cast<size_t>(j)), channels, 0, level);
  }
  for (size_t i = 0; i < levels; ++i) {
    const std::string block = numbered_name("up_blocks", i);
    const int64_t factor = back(config.upsample_factor, i);
    const int64_t width = back(config.decoder_block_out_channels, i) / factor;
    const bool doubles = back(config.decoder_spatio_temporal_scaling, i);
    KINORA_CHECK(factor == 1 || (doubles && channels == width * factor), kConfig,
                 "[ltx_vae] level ", i, " of the decoder must have ", width * factor,
                 " channels before it, upsample_factor times its own, and double clips, got ",
                 channels);
    if (factor == 1 && channels != width) {
      decoder_.add<LtxResidualLayer>(
          block + ".conv_in", channels, width,
          LtxResidualOptions{.causal = config.decoder_causal,
                             .shortcut_epsilon = config.resnet_norm_eps});
      KINORA_CHECK(!config.timestep_conditioning && !back(config.decoder_inject_noise, i + 1),
                   kConfig, "[ltx_vae] level ", i,
                   " of the decoder must keep its channels where it has a noise level or noise, "
                   "got ",
                   channels, " and ", width);
    }
    level = embedder(block + ".", width, kResidualVectors);
    if (doubles) {
      decoder_.add<LtxUnfoldingLayer>(block + ".upsamplers.0", width * factor, factor,
                                      back(config.upsample_residual, i), config.decoder_causal);
    }
    for (int64_t j = 0; j < back(config.decoder_layers_per_block, i + 1); ++j) {
      add_residual(numbered_name(block + ".resnets", static_cast<size_t>(j)), width, i + 1, level);
    }
    channels = width;
  }
  decoder_.add<LtxNormConvLayer>("", channels, kPixelChannels * patch_ * patch_,
                                 config.decoder_causal, embedder("", channels, kLastVectors));
  decoder_.add<LtxUnpatchingLayer>("", patch_);
}

void LtxVae::set_decode_noise(const DecodeNoise& noise) {
  if (level_ == nullptr) {
    ClipAutoencoder::set_decode_noise(noise);
    return;
  }
  level_->set(noise.level);
  mixed_ = noise.mixed;
}

nn::BandPlan LtxVae::decode_plan(const ClipSize& latents, bool with_gradients) const {
  return decoder_.plan(latents, limits(), with_gradients);
}

LatentMoments LtxVae::encode_clip(const at::Tensor& clip) {
  const at::Tensor made = encoder_.forward(clip, limits());
  const at::Tensor mean = made.narrow(1, 0, latent_channels_);
  return moments_of(at::cat({mean, made.narrow(1, latent_channels_, 1).expand_as(mean)}, 1));
}

at::Tensor LtxVae::decode_clip(const at::Tensor& raw) {
  at::Tensor latents = raw;
  if (mixed_ > 0.0) {
    std::vector<int64_t> shape = raw.sizes().vec();
    shape[0] = 1;
    const at::Tensor noise = constant_noise("decoder.noise", shape, raw.device());
    latents = raw * (1.0 - mixed_) + noise.to(raw.scalar_type()) * mixed_;
  }
  return decoder_.forward(latents, limits());
}

}  // namespace kinora::models
