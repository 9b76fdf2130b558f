#include "kinora/models/autoencoders/video_dc_ae.h"

#include <algorithm>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/layers/dc_layers.h"

namespace kinora::models {
namespace {

constexpr DcForm kClipForm = DcForm::kClips;

LatentSpace space_of(const VideoDcAeConfig& config) {
  const size_t stages = config.widths.size();
  KINORA_CHECK(stages > 0 && config.encoder_depths.size() == stages &&
                   config.decoder_depths.size() == stages && config.temporal.size() == stages,
               kConfig, "[video_dc_ae] depths and temporal must have an entry for each of ", stages,
               " widths, got ", config.encoder_depths.size(), ", ", config.decoder_depths.size(),
               " and ", config.temporal.size());
  const auto halvings = std::count(config.temporal.begin(), config.temporal.end(), true);
  return {.channels = config.latent_channels,
          .compression = int64_t{1} << (stages - 1),
          .frame_compression = int64_t{1} << halvings,
          .scale = {1.0 / config.scaling_factor},
          .shift = {0.0}};
}

void add_blocks(BandNet& net, const VideoDcAeConfig& config, size_t stage, int64_t depth,
                int64_t first) {
  const int64_t width = config.widths[stage];
  for (int64_t j = first; j < first + depth; ++j) {
    const std::string op = "stages." + std::to_string(stage) + ".op_list." + std::to_string(j);
    if (static_cast<int64_t>(stage) < config.first_attention_stage) {
      net.add<DcResidualLayer>(op + ".main", width, kClipForm);
    } else {
      net.add<LinearAttentionLayer>(op + ".context_module.main", width,
                                    LinearAttentionOptions{.head_channels = config.attention_dim},
                                    kClipForm);
      net.add<GatedLayer>(op + ".local_module.main", width, kClipForm);
    }
  }
}

void add_encoder(BandNet& net, const VideoDcAeConfig& config) {
  const std::vector<int64_t>& widths = config.widths;
  net.add<AveragingLayer>("project_in", 3, widths.front(), DcResize{.has_shortcut = false},
                          kClipForm);
  for (size_t i = 0; i < widths.size(); ++i) {
    add_blocks(net, config, i, config.encoder_depths[i], 0);
    if (i + 1 < widths.size()) {
      net.add<AveragingLayer>("stages." + std::to_string(i) + ".op_list." +
                                  std::to_string(config.encoder_depths[i]) + ".main",
                              widths[i], widths[i + 1],
                              DcResize{.frames = config.temporal[i], .sides = true}, kClipForm);
    }
  }
  net.add<AveragingLayer>("project_out.main.op_list.0", widths.back(), config.latent_channels,
                          DcResize{}, kClipForm);
}

void add_decoder(BandNet& net, const VideoDcAeConfig& config) {
  const std::vector<int64_t>& widths = config.widths;
  net.add<DuplicatingLayer>("project_in.main", config.latent_channels, widths.back(), DcResize{},
                            kClipForm);
  for (size_t i = widths.size(); i-- > 0;) {
    const bool enlarges = i + 1 < widths.size();
    if (enlarges) {
      net.add<DuplicatingLayer>("stages." + std::to_string(i) + ".op_list.0.main.conv",
                                widths[i + 1], widths[i],
                                DcResize{.frames = config.temporal[i], .sides = true}, kClipForm);
    }
    add_blocks(net, config, i, config.decoder_depths[i], enlarges ? 1 : 0);
  }
  net.add<NormReluConvLayer>("project_out.op_list", widths.front(), 3,
                             DcResize{.has_shortcut = false}, kClipForm);
}

}  // namespace

VideoDcAe::VideoDcAe(const VideoDcAeConfig& config)
    : ClipAutoencoder(space_of(config)), encoder_(space().compression) {
  add_encoder(encoder_, config);
  add_decoder(decoder_, config);
  add_child("encoder", encoder_);
  add_child("decoder", decoder_);
}

LatentMoments VideoDcAe::encode_clip(const at::Tensor& pixels) {
  return {.mean = encoder_.forward(pixels, limits()), .std = {}};
}

at::Tensor VideoDcAe::decode_clip(const at::Tensor& raw) {
  return decoder_.forward(raw, limits());
}

}  // namespace kinora::models
