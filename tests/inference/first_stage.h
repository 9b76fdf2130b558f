#pragma once

#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "tests/models/formula_file.h"

namespace kinora::inference {

/// Adds an autoencoder's weights to those of a file of CompVis.
inline void add_first_stage(const models::AutoencoderVqConfig& config,
                            models::NamedTensors& tensors) {
  models::AutoencoderVq first_stage(config);
  for (const auto& [path, parameter] : first_stage.named_parameters()) {
    at::Tensor value = models::formula_weight(path, parameter->shape);
    if (models::is_kl_attention_weight(path)) {
      value = value.unsqueeze(-1).unsqueeze(-1);
    }
    tensors["first_stage_model." +
            models::compvis_kl_key(path, config.halves.block_out_channels.size())] = value;
  }
}

}  // namespace kinora::inference
