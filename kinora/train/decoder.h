#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// What to take instead of what the run says.
struct DecoderChoice {
  std::string path = {};                  ///< of the autoencoder; empty: autoencoder.path
  std::optional<double> memory_gib = {};  ///< 0: no limit; nothing: autoencoder.memory_gib
};

/// What makes pixels of the latents that a run's model draws; null: nobody names an autoencoder.
/// kIo where none is there, kConfig where it does not belong to the model.
[[nodiscard]] std::unique_ptr<models::Autoencoder> open_decoder(const RunConfig& config,
                                                                const DecoderChoice& choice,
                                                                at::Device device);

}  // namespace kinora::train
