#include "kinora/models/autoencoders/temporal_vae.h"

#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/clip_layers.h"

namespace kinora::models {
namespace {

constexpr double kTemporalEpsilon = 1e-5;

ClipKernel kernel(bool has_bias) {
  return {.edges = Edges::kZero, .has_bias = has_bias};
}

ResidualOptions residual(const TemporalVaeConfig& config) {
  return {.groups = config.num_groups,
          .epsilon = kTemporalEpsilon,
          .kernel = kernel(false),
          .shortcut_name = "conv3.conv"};
}

int64_t compression_of(const TemporalVaeConfig& config) {
  KINORA_CHECK(config.channel_multipliers.size() == config.temporal_downsample.size() + 1 &&
                   config.num_res_blocks > 0,
               kConfig, "[temporal_vae] there must be one halving less than multipliers, got ",
               config.temporal_downsample.size(), " and ", config.channel_multipliers.size());
  int64_t compression = 1;
  for (const bool halves : config.temporal_downsample) {
    compression *= halves ? 2 : 1;
  }
  return compression;
}

void add_residuals(BandNet& net, const std::string& name, int64_t in_channels, int64_t channels,
                   const TemporalVaeConfig& config) {
  for (int64_t j = 0; j < config.num_res_blocks; ++j) {
    net.add<ResidualLayer>(name + "." + std::to_string(j), j == 0 ? in_channels : channels,
                           channels, residual(config));
  }
}

void add_encoder(BandNet& net, const TemporalVaeConfig& config) {
  int64_t channels = config.filters;
  net.add<ConvLayer>("conv_in", config.channels, channels, kernel(false));
  for (size_t i = 0; i < config.channel_multipliers.size(); ++i) {
    const int64_t width = config.filters * config.channel_multipliers[i];
    add_residuals(net, "block_res_blocks." + std::to_string(i), channels, width, config);
    channels = width;
    if (i < config.temporal_downsample.size() && config.temporal_downsample[i]) {
      // One frame of zeros, so that an even number becomes half.
      ClipKernel halving = kernel(true);
      halving.stride = {2, 1, 1};
      halving.time = {1, 0};
      net.add<ConvLayer>("conv_blocks." + std::to_string(i), channels, channels, halving);
    }
  }
  add_residuals(net, "res_blocks", channels, channels, config);
  net.add<NormConvLayer>("", channels, 2 * config.channels,
                         NormConvLayer::Options{.groups = config.num_groups,
                                                .epsilon = kTemporalEpsilon,
                                                .kernel = ClipKernel::point(),
                                                .norm_name = "norm1",
                                                .conv_name = "conv2.conv"});
}

void add_decoder(BandNet& net, const TemporalVaeConfig& config) {
  int64_t channels = config.filters * config.channel_multipliers.back();
  net.add<ConvLayer>("conv1", config.channels, channels, kernel(true));
  add_residuals(net, "res_blocks", channels, channels, config);
  for (size_t i = config.channel_multipliers.size(); i-- > 0;) {
    const int64_t width = config.filters * config.channel_multipliers[i];
    add_residuals(net, "block_res_blocks." + std::to_string(i), channels, width, config);
    channels = width;
    if (i > 0 && config.temporal_downsample[i - 1]) {
      net.add<FrameDoublingLayer>("conv_blocks." + std::to_string(i - 1), channels, kernel(true));
    }
  }
  net.add<NormConvLayer>("", channels, config.channels,
                         NormConvLayer::Options{.groups = config.num_groups,
                                                .epsilon = kTemporalEpsilon,
                                                .kernel = kernel(true),
                                                .norm_name = "norm1",
                                                .conv_name = "conv_out.conv"});
}

}  // namespace

TemporalVae::TemporalVae(const TemporalVaeConfig& config)
    : compression_(compression_of(config)),
      quant_conv_(nn::ConvShape::same(2 * config.channels, 2 * config.channels, 1, 3)),
      post_quant_conv_(nn::ConvShape::same(config.channels, config.channels, 1, 3)) {
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("quant_conv.conv", quant_conv_);
  add_child("post_quant_conv.conv", post_quant_conv_);
  add_child("decoder", decoder_);
}

at::Tensor TemporalVae::encode(const at::Tensor& x, const nn::BandLimits& limits) const {
  return quant_conv_.forward(encoder_.forward(x, limits));
}

at::Tensor TemporalVae::decode(const at::Tensor& z, const nn::BandLimits& limits) const {
  return decoder_.forward(post_quant_conv_.forward(z), limits);
}

}  // namespace kinora::models
