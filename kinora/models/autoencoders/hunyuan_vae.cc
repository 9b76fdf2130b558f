#include "kinora/models/autoencoders/hunyuan_vae.h"

#include <bit>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/clip_layers.h"
#include "kinora/models/layers/frame_attention.h"

namespace kinora::models {
namespace {

constexpr double kEpsilon = 1e-6;

/// By what block i, counted in the direction of data, changes the size of frames and of sides.
struct Step {
  int64_t frames = 1;
  int64_t sides = 1;
};

int64_t num_halvings(const std::string& name, int64_t ratio, size_t blocks) {
  const bool is_power = ratio > 0 && std::has_single_bit(static_cast<uint64_t>(ratio));
  const int64_t halvings = std::countr_zero(static_cast<uint64_t>(ratio));
  KINORA_CHECK(is_power && halvings < static_cast<int64_t>(blocks), kConfig, "[hunyuan_vae] ", name,
               " must be a power of two below 2^", blocks, " for ", blocks, " blocks, got ", ratio);
  return halvings;
}

/// Sides change in the first blocks, frames in the last ones but the very last.
std::vector<Step> steps(const HunyuanVaeConfig& config) {
  const size_t blocks = config.block_out_channels.size();
  const auto sides = static_cast<size_t>(
      num_halvings("spatial_compression_ratio", config.spatial_compression_ratio, blocks));
  const auto frames = static_cast<size_t>(
      num_halvings("temporal_compression_ratio", config.temporal_compression_ratio, blocks));
  std::vector<Step> result(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    result[i].sides = i < sides ? 2 : 1;
    result[i].frames = i + 1 < blocks && i + 1 + frames >= blocks ? 2 : 1;
    KINORA_CHECK(result[i].frames <= result[i].sides, kConfig,
                 "[hunyuan_vae] frames must be halved where sides are, got ratios ",
                 config.temporal_compression_ratio, " and ", config.spatial_compression_ratio);
  }
  return result;
}

void add_middle(BandNet& net, int64_t channels, const HunyuanVaeConfig& config) {
  const ResidualOptions residual = {.groups = config.norm_num_groups, .epsilon = kEpsilon};
  net.add<ResidualLayer>("mid_block.resnets.0", channels, channels, residual);
  if (config.mid_block_add_attention) {
    net.add<FrameAttention>("mid_block.attentions.0", channels, config.norm_num_groups, kEpsilon);
  }
  net.add<ResidualLayer>("mid_block.resnets.1", channels, channels, residual);
}

void add_encoder(BandNet& net, const HunyuanVaeConfig& config) {
  const std::vector<Step> sizes = steps(config);
  const std::vector<int64_t>& widths = config.block_out_channels;
  const ResidualOptions residual = {.groups = config.norm_num_groups, .epsilon = kEpsilon};
  int64_t channels = widths.front();
  net.add<ConvLayer>("conv_in", 3, channels, ClipKernel{});
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string block = "down_blocks." + std::to_string(i);
    for (int64_t j = 0; j < config.layers_per_block; ++j) {
      net.add<ResidualLayer>(block + ".resnets." + std::to_string(j), channels, widths[i],
                             residual);
      channels = widths[i];
    }
    if (sizes[i].sides > 1) {
      net.add<ConvLayer>(block + ".downsamplers.0.conv", channels, channels,
                         ClipKernel{.stride = {sizes[i].frames, sizes[i].sides, sizes[i].sides}});
    }
  }
  add_middle(net, channels, config);
  net.add<NormConvLayer>(
      "", channels, 2 * config.latent_channels,
      NormConvLayer::Options{.groups = config.norm_num_groups, .epsilon = kEpsilon});
}

void add_decoder(BandNet& net, const HunyuanVaeConfig& config) {
  const std::vector<Step> sizes = steps(config);
  const std::vector<int64_t> widths(config.block_out_channels.rbegin(),
                                    config.block_out_channels.rend());
  const ResidualOptions residual = {.groups = config.norm_num_groups, .epsilon = kEpsilon};
  int64_t channels = widths.front();
  net.add<ConvLayer>("conv_in", config.latent_channels, channels, ClipKernel{});
  add_middle(net, channels, config);
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string block = "up_blocks." + std::to_string(i);
    for (int64_t j = 0; j < config.layers_per_block + 1; ++j) {
      net.add<ResidualLayer>(block + ".resnets." + std::to_string(j), channels, widths[i],
                             residual);
      channels = widths[i];
    }
    if (sizes[i].sides > 1) {
      net.add<UpsampleLayer>(block + ".upsamplers.0.conv", channels, sizes[i].frames, ClipKernel{});
    }
  }
  net.add<NormConvLayer>(
      "", channels, 3,
      NormConvLayer::Options{.groups = config.norm_num_groups, .epsilon = kEpsilon});
}

LatentSpace space_of(const HunyuanVaeConfig& config) {
  return {.channels = config.latent_channels,
          .compression = config.spatial_compression_ratio,
          .frame_compression = config.temporal_compression_ratio,
          .first_frame_alone = true,
          .scale = {config.scaling_factor},
          .shift = {0.0}};
}

}  // namespace

HunyuanVae::HunyuanVae(const HunyuanVaeConfig& config)
    : ClipAutoencoder(space_of(config)),
      encoder_(config.spatial_compression_ratio),
      decoder_(1),
      quant_conv_(
          nn::ConvShape::same(2 * config.latent_channels, 2 * config.latent_channels, 1, 3)),
      post_quant_conv_(nn::ConvShape::same(config.latent_channels, config.latent_channels, 1, 3)) {
  KINORA_CHECK(!config.block_out_channels.empty() && config.layers_per_block > 0, kConfig,
               "[hunyuan_vae] blocks and layers must be one or more, got ",
               config.block_out_channels.size(), " and ", config.layers_per_block);
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
  add_child("quant_conv", quant_conv_);
  add_child("post_quant_conv", post_quant_conv_);
}

nn::BandPlan HunyuanVae::decode_plan(const ClipSize& latents, bool with_gradients) const {
  return decoder_.plan(latents, limits(), with_gradients);
}

LatentMoments HunyuanVae::encode_clip(const at::Tensor& pixels) {
  return moments_of(quant_conv_.forward(encoder_.forward(pixels, limits())));
}

at::Tensor HunyuanVae::decode_clip(const at::Tensor& raw) {
  return decoder_.forward(post_quant_conv_.forward(raw), limits());
}

}  // namespace kinora::models
