#include "kinora/models/autoencoders/opensora_causal_vae.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/clip_layers.h"
#include "kinora/models/layers/place_attention.h"

namespace kinora::models {
namespace {

constexpr int64_t kCausalFramesDim = 2;
constexpr double kCausalEpsilon = 1e-6;
constexpr double kUpsampleEpsilon = 1e-5;  // of the norms where clips become larger

ClipKernel kernel() {
  return {.edges = Edges::kZero};
}

/// Of single frames.
ClipKernel image_kernel() {
  return {.size = {1, 3, 3}, .time = {0, 0}, .edges = Edges::kZero, .of_images = true};
}

ResidualOptions residual(const OpenSoraCausalVaeConfig& config) {
  return {.groups = config.num_groups,
          .epsilon = kCausalEpsilon,
          .kernel = kernel(),
          .shortcut_name = "nin_shortcut.conv"};
}

NormConvLayer::Options ending(const OpenSoraCausalVaeConfig& config, const std::string& conv_name) {
  return {.groups = config.num_groups,
          .epsilon = kCausalEpsilon,
          .kernel = kernel(),
          .norm_name = "norm_out",
          .conv_name = conv_name};
}

void add_residuals(BandNet& net, const std::string& level, int64_t count, int64_t in_channels,
                   int64_t channels, const OpenSoraCausalVaeConfig& config) {
  for (int64_t j = 0; j < count; ++j) {
    net.add<ResidualLayer>(level + ".block." + std::to_string(j), j == 0 ? in_channels : channels,
                           channels, residual(config));
  }
}

void add_middle(BandNet& net, int64_t channels, const OpenSoraCausalVaeConfig& config) {
  net.add<ResidualLayer>("mid.block_1", channels, channels, residual(config));
  net.add<PlaceAttention>("mid.attn_1", channels, config.num_groups, kCausalEpsilon);
  net.add<ResidualLayer>("mid.block_2", channels, channels, residual(config));
}

void add_encoder(BandNet& net, const OpenSoraCausalVaeConfig& config) {
  int64_t channels = config.channels;
  net.add<ConvLayer>("conv_in", kPixelChannels, channels, kernel());
  for (size_t i = 0; i < config.channel_multipliers.size(); ++i) {
    const std::string level = "down." + std::to_string(i);
    const int64_t width = config.channels * config.channel_multipliers[i];
    add_residuals(net, level, config.num_res_blocks, channels, width, config);
    channels = width;
    if (i == config.temporal_downsample.size()) {
      break;
    }
    if (config.temporal_downsample[i]) {
      ClipKernel halving = kernel();
      halving.stride = {2, 2, 2};
      net.add<ConvLayer>(level + ".downsample.conv", channels, channels, halving);
    } else {
      ClipKernel halving = image_kernel();
      halving.stride = {1, 2, 2};
      halving.zeros_behind = true;
      net.add<ConvLayer>(level + ".downsample", channels, channels, halving);
    }
  }
  add_middle(net, channels, config);
  net.add<NormConvLayer>("", channels, 2 * config.latent_channels, ending(config, "conv_out.conv"));
}

void add_decoder(BandNet& net, const OpenSoraCausalVaeConfig& config) {
  int64_t channels = config.channels * config.channel_multipliers.back();
  net.add<ConvLayer>("conv_in", config.latent_channels, channels, kernel());
  add_middle(net, channels, config);
  for (size_t i = config.channel_multipliers.size(); i-- > 0;) {
    const std::string level = "up." + std::to_string(i);
    const int64_t width = config.channels * config.channel_multipliers[i];
    add_residuals(net, level, config.num_res_blocks + 1, channels, width, config);
    channels = width;
    if (i == 0) {
      break;
    }
    if (config.temporal_downsample[i - 1]) {
      net.add<UpsampleResidualLayer>(level + ".upsample.conv3d", channels, config.num_groups,
                                     kUpsampleEpsilon, kernel());
    } else {
      net.add<UpsampleLayer>(level + ".upsample", channels, 1, image_kernel());
    }
  }
  net.add<NormConvLayer>("", channels, kPixelChannels, ending(config, "conv_out"));
}

LatentSpace space_of(const OpenSoraCausalVaeConfig& config) {
  KINORA_CHECK(config.channel_multipliers.size() == config.temporal_downsample.size() + 1 &&
                   config.num_res_blocks > 0,
               kConfig,
               "[opensora_causal_vae] there must be blocks, and one halving less than multipliers, "
               "got ",
               config.num_res_blocks, " blocks, ", config.temporal_downsample.size(), " and ",
               config.channel_multipliers.size());
  LatentSpace space;
  space.channels = config.latent_channels;
  space.compression = int64_t{1} << config.temporal_downsample.size();
  space.frame_compression = int64_t{1} << std::ranges::count(config.temporal_downsample, true);
  space.first_frame_alone = true;
  space.chunk_frames = config.micro_frame_size;
  space.chunks_share_frame = true;
  KINORA_CHECK(
      config.micro_frame_size > 1 && (config.micro_frame_size - 1) % space.frame_compression == 0,
      kConfig, "[opensora_causal_vae] micro_frame_size must be 1 + a multiple of ",
      space.frame_compression, " and not 1, got ", config.micro_frame_size);
  for (const auto& [name, values] :
       {std::pair{"shift", &config.shift}, std::pair{"scale", &config.scale}}) {
    KINORA_CHECK(values->size() == 1 || std::ssize(*values) == config.latent_channels, kConfig,
                 "[opensora_causal_vae] ", name, " must have one value for all or for each of ",
                 config.latent_channels, " channels, got ", values->size());
  }
  space.shift = config.shift;
  space.scale.clear();
  for (const double scale : config.scale) {
    space.scale.push_back(1.0 / scale);
  }
  return space;
}

at::Tensor chunk_of(const at::Tensor& clip, int64_t begin, int64_t count) {
  return clip.narrow(kCausalFramesDim, begin, std::min(count, clip.size(kCausalFramesDim) - begin));
}

}  // namespace

OpenSoraCausalVae::OpenSoraCausalVae(const OpenSoraCausalVaeConfig& config)
    : ClipAutoencoder(space_of(config)), encoder_(space().compression), decoder_(1) {
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
}

nn::BandPlan OpenSoraCausalVae::decode_plan(const ClipSize& latents, bool with_gradients) const {
  return decoder_.plan(latents, limits(), with_gradients);
}

LatentMoments OpenSoraCausalVae::encode_clip(const at::Tensor& pixels) {
  const int64_t chunk = space().chunk_frames;
  std::vector<at::Tensor> chunks;
  int64_t begin = 0;
  do {
    chunks.push_back(encoder_.forward(chunk_of(pixels, begin, chunk), limits()));
    begin += chunk - 1;
  } while (begin + 1 < pixels.size(kCausalFramesDim));
  return moments_of(at::cat(chunks, kCausalFramesDim));
}

at::Tensor OpenSoraCausalVae::decode_clip(const at::Tensor& raw) {
  const int64_t chunk = latent_frames(space(), space().chunk_frames);
  const int64_t surplus = space().frame_compression - 1;  // before the first frame
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < raw.size(kCausalFramesDim); begin += chunk) {
    const at::Tensor decoded = decoder_.forward(chunk_of(raw, begin, chunk), limits());
    const int64_t count = decoded.size(kCausalFramesDim) - surplus;
    const at::Tensor frames = decoded.narrow(kCausalFramesDim, surplus, count);
    if (begin == 0) {
      parts.push_back(frames);
      continue;
    }
    const at::Tensor before = parts.back();
    const int64_t last = before.size(kCausalFramesDim) - 1;
    parts.back() = before.narrow(kCausalFramesDim, 0, last);
    parts.push_back(
        (before.narrow(kCausalFramesDim, last, 1) + frames.narrow(kCausalFramesDim, 0, 1)) * 0.5);
    parts.push_back(frames.narrow(kCausalFramesDim, 1, count - 1));
  }
  return at::cat(parts, kCausalFramesDim);
}

}  // namespace kinora::models
