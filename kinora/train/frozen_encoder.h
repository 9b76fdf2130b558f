#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// The autoencoder of a run, frozen.
struct FrozenEncoder {
  std::unique_ptr<models::Autoencoder> autoencoder;
  pipelines::LatentEncoder encoder;
};

/// What names the latents of autoencoder.* in a cache: which it is, and how it computes. kIo.
[[nodiscard]] std::string autoencoder_key(const AutoencoderOptions& options);

/// That of autoencoder.*; null without a path. Errors of opening it; kConfig where the data are a
/// cache that another one made.
[[nodiscard]] std::unique_ptr<FrozenEncoder> open_encoder(const RunConfig& config,
                                                          at::Device device);

}  // namespace kinora::train
