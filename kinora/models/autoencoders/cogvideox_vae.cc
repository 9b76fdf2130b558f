#include "kinora/models/autoencoders/cogvideox_vae.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/clip_layers.h"
#include "kinora/models/layers/latent_norm_layers.h"

namespace kinora::models {
namespace {

constexpr int64_t kCogFramesDim = 2;
constexpr int64_t kPieceFrames = 8;
constexpr int64_t kPieceLatents = 2;
constexpr int64_t kMiddleBlocks = 2;
constexpr double kLatentNormEpsilon = 1e-6;  // of the decoder's norms and of the last ones

/// `total` in pieces of `each`, of which the first one has what is over, too.
std::vector<int64_t> in_pieces(int64_t total, int64_t each) {
  std::vector<int64_t> pieces(static_cast<size_t>(std::max<int64_t>(total / each, 1)), each);
  pieces.front() = total - (std::ssize(pieces) - 1) * each;
  return pieces;
}

/// Of single frames, for what changes their sides.
ClipKernel side_kernel() {
  return {.size = {1, 3, 3}, .time = {0, 0}, .edges = Edges::kZero, .of_images = true};
}

size_t num_time_steps(const CogVideoXVaeConfig& config) {
  return static_cast<size_t>(
      std::countr_zero(static_cast<uint64_t>(config.temporal_compression_ratio)));
}

void add_blocks(BandNet& net, const std::string& block, int64_t count, int64_t in_channels,
                int64_t out_channels, const LatentNormOptions& norms) {
  for (int64_t j = 0; j < count; ++j) {
    net.add<LatentNormResidualLayer>(block + ".resnets." + std::to_string(j),
                                     j == 0 ? in_channels : out_channels, out_channels, norms);
  }
}

void add_encoder(BandNet& net, const CogVideoXVaeConfig& config) {
  const std::vector<int64_t>& widths = config.block_out_channels;
  LatentNormOptions norms{.groups = config.norm_num_groups, .epsilon = config.norm_eps};
  int64_t channels = widths.front();
  net.add<CausalConvLayer>("conv_in.conv", kPixelChannels, channels, Edges::kRepeat);
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string block = "down_blocks." + std::to_string(i);
    add_blocks(net, block, config.layers_per_block, channels, widths[i], norms);
    channels = widths[i];
    if (i + 1 == widths.size()) {
      break;
    }
    if (i < num_time_steps(config)) {
      net.add<FrameMeansLayer>(block + ".frames");
    }
    ClipKernel halving = side_kernel();
    halving.stride = {1, 2, 2};
    halving.zeros_behind = true;
    net.add<ConvLayer>(block + ".downsamplers.0", channels, channels, halving);
  }
  add_blocks(net, "mid_block", kMiddleBlocks, channels, channels, norms);
  norms.epsilon = kLatentNormEpsilon;
  net.add<LatentNormConvLayer>("", channels, 2 * config.latent_channels, norms);
}

void add_decoder(BandNet& net, const CogVideoXVaeConfig& config) {
  const std::vector<int64_t> widths(config.block_out_channels.rbegin(),
                                    config.block_out_channels.rend());
  const LatentNormOptions norms{.groups = config.norm_num_groups,
                                .epsilon = kLatentNormEpsilon,
                                .latent_channels = config.latent_channels};
  int64_t channels = widths.front();
  net.add<CausalConvLayer>("conv_in.conv", config.latent_channels, channels, Edges::kRepeat);
  add_blocks(net, "mid_block", kMiddleBlocks, channels, channels, norms);
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string block = "up_blocks." + std::to_string(i);
    add_blocks(net, block, config.layers_per_block + 1, channels, widths[i], norms);
    channels = widths[i];
    if (i + 1 == widths.size()) {
      break;
    }
    if (i < num_time_steps(config)) {
      net.add<FrameRepeatsLayer>(block + ".frames");
    }
    net.add<UpsampleLayer>(block + ".upsamplers.0", channels, channels, 1, side_kernel(), "conv");
  }
  net.add<LatentNormConvLayer>("", channels, kPixelChannels, norms);
}

LatentSpace space_of(const CogVideoXVaeConfig& config) {
  const int64_t blocks = std::ssize(config.block_out_channels);
  const int64_t ratio = config.temporal_compression_ratio;
  KINORA_CHECK(blocks > 0 && config.layers_per_block > 0 && config.latent_channels > 0, kConfig,
               "[cogvideox_vae] there must be blocks, layers and latent channels, got ", blocks,
               ", ", config.layers_per_block, " and ", config.latent_channels);
  KINORA_CHECK(ratio > 0 && std::has_single_bit(static_cast<uint64_t>(ratio)) &&
                   std::countr_zero(static_cast<uint64_t>(ratio)) < blocks,
               kConfig,
               "[cogvideox_vae] temporal_compression_ratio must be a power of two below 2^", blocks,
               " for ", blocks, " blocks, got ", ratio);
  return {.channels = config.latent_channels,
          .compression = int64_t{1} << (blocks - 1),
          .frame_compression = ratio,
          .first_frame_alone = true,
          .inverts_shown = config.invert_scale_latents,
          .scale = {config.scaling_factor},
          .shift = {0.0}};
}

}  // namespace

CogVideoXVae::CogVideoXVae(const CogVideoXVaeConfig& config)
    : ClipAutoencoder(space_of(config)), encoder_(space().compression), decoder_(1) {
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
}

nn::BandPlan CogVideoXVae::decode_plan(const ClipSize& latents, bool with_gradients) const {
  return decoder_.piece_plan(latents, in_pieces(latents.frames, kPieceLatents).front(), limits(),
                             with_gradients);
}

LatentMoments CogVideoXVae::encode_clip(const at::Tensor& pixels) {
  return moments_of(encoder_.forward_pieces(
      pixels, in_pieces(pixels.size(kCogFramesDim), kPieceFrames), limits()));
}

at::Tensor CogVideoXVae::decode_clip(const at::Tensor& raw) {
  return decoder_.forward_pieces(raw, in_pieces(raw.size(kCogFramesDim), kPieceLatents), limits());
}

}  // namespace kinora::models
