#include "kinora/models/autoencoders/dc_ae.h"

#include <string>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

constexpr DcForm kForm = DcForm::kImages;

void check_stages(const char* half, const std::vector<DcAeStage>& stages) {
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool may_be_empty = stages.size() > 1 && (i == 0 || i + 1 == stages.size());
    KINORA_CHECK(stages[i].width > 0 && stages[i].depth >= (may_be_empty ? 0 : 1), kConfig,
                 "[dc_ae] the ", half, "'s stage ", i, " of ", stages.size(),
                 " must have channels and layers, got ", stages[i].width, " and ", stages[i].depth,
                 ". Hint: only the first and the last of several can do without layers");
  }
}

LatentSpace space_of(const DcAeConfig& config) {
  KINORA_CHECK(!config.encoder.empty() && config.encoder.size() == config.decoder.size(), kConfig,
               "[dc_ae] encoder and decoder must have as many stages, got ", config.encoder.size(),
               " and ", config.decoder.size());
  check_stages("encoder", config.encoder);
  check_stages("decoder", config.decoder);
  return {.channels = config.latent_channels,
          .compression = int64_t{1} << (config.encoder.size() - 1),
          .scale = {config.scaling_factor},
          .shift = {0.0}};
}

/// Adds a stage's blocks as `prefix` + their numbers from `first`.
void add_blocks(BandNet& net, const DcAeStage& stage, int64_t head_channels,
                const std::string& prefix, int64_t first) {
  for (int64_t j = first; j < first + stage.depth; ++j) {
    const std::string block = prefix + std::to_string(j);
    if (!stage.attends) {
      net.add<DcResidualLayer>(block, stage.width, kForm, stage.norm, stage.activation);
      continue;
    }
    net.add<LinearAttentionLayer>(
        block + ".attn", stage.width,
        LinearAttentionOptions{
            .head_channels = head_channels, .scales = stage.scales, .norm = stage.norm},
        kForm);
    net.add<GatedLayer>(block + ".conv_out", stage.width, kForm);
  }
}

void add_encoder(BandNet& net, const DcAeConfig& config) {
  const std::vector<DcAeStage>& stages = config.encoder;
  const bool passes_over = stages.front().depth == 0;
  const size_t first = passes_over ? 1 : 0;
  net.add<AveragingLayer>("conv_in", kPixelChannels, stages[first].width,
                          DcResize{.sides = passes_over,
                                   .shuffles = passes_over && config.unshuffles,
                                   .has_shortcut = false},
                          kForm);
  for (size_t i = first; i < stages.size(); ++i) {
    const std::string prefix = "down_blocks." + std::to_string(i) + ".";
    add_blocks(net, stages[i], config.attention_head_dim, prefix, 0);
    if (i + 1 < stages.size()) {
      net.add<AveragingLayer>(prefix + std::to_string(stages[i].depth), stages[i].width,
                              stages[i + 1].width,
                              DcResize{.sides = true, .shuffles = config.unshuffles}, kForm);
    }
  }
  net.add<AveragingLayer>("conv_out", stages.back().width, config.latent_channels,
                          DcResize{.has_shortcut = config.encoder_out_shortcut}, kForm);
}

void add_decoder(BandNet& net, const DcAeConfig& config) {
  const std::vector<DcAeStage>& stages = config.decoder;
  const bool passes_over = stages.front().depth == 0;
  const size_t first = passes_over ? 1 : 0;
  net.add<DuplicatingLayer>("conv_in", config.latent_channels, stages.back().width,
                            DcResize{.has_shortcut = config.decoder_in_shortcut}, kForm);
  for (size_t i = stages.size(); i-- > first;) {
    const std::string prefix = "up_blocks." + std::to_string(i) + ".";
    const bool enlarges = i + 1 < stages.size();
    if (enlarges) {
      net.add<DuplicatingLayer>(prefix + "0", stages[i + 1].width, stages[i].width,
                                DcResize{.sides = true, .shuffles = config.shuffles}, kForm);
    }
    add_blocks(net, stages[i], config.attention_head_dim, prefix, enlarges ? 1 : 0);
  }
  net.add<NormReluConvLayer>(
      "", stages[first].width, kPixelChannels,
      DcResize{
          .sides = passes_over, .shuffles = passes_over && config.shuffles, .has_shortcut = false},
      kForm);
}

/// `net` of images [B, C, H, W] as clips of one frame.
at::Tensor run(const BandNet& net, const at::Tensor& x, const nn::BandLimits& limits) {
  return net.forward(x.unsqueeze(2), limits).squeeze(2);
}

}  // namespace

DcAe::DcAe(const DcAeConfig& config)
    : ImageAutoencoder(space_of(config)), encoder_(space().compression) {
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
}

LatentMoments DcAe::encode_images(const at::Tensor& pixels) {
  return {.mean = run(encoder_, pixels, limits()), .std = {}};
}

at::Tensor DcAe::decode_images(const at::Tensor& raw) {
  return run(decoder_, raw, limits());
}

}  // namespace kinora::models
