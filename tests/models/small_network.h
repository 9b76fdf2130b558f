#pragma once

#include "kinora/models/families.h"

namespace kinora::models {

/// Gives `config`, which says its architecture, a small network: of a transformer `depth` blocks of
/// `hidden` channels, of a U-Net at least seven blocks of as many and twice as many channels.
inline void set_small_network(ModelConfig& config, int64_t depth, int64_t hidden, int64_t heads) {
  if (family_of(config).shape == transformer_shape) {
    config.transformer.depth = depth;
    config.transformer.hidden = hidden;
    config.transformer.heads = heads;
    // LTX-Video's autoencoder makes one token of each place.
    config.transformer.patch = config.architecture == "ltx_video" ? 1 : 2;
  } else {
    const bool reads_labels = family_of(config).conditions.labels;
    config.text_channels = reads_labels ? hidden : config.text_channels;
    config.unet = {.channels = {hidden, 2 * hidden},
                   .resnets = 1,
                   .depths = {1, 0},
                   .middle_depth = 1,
                   .heads = {heads, heads},
                   .norm_groups = 4};
    config.unet.classes = reads_labels ? UnetClasses::kToken : UnetClasses::kNone;
  }
}

}  // namespace kinora::models
