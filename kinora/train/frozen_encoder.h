#pragma once

#include <c10/core/Device.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "kinora/data/data_config.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/parallel/mesh.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// The autoencoder of a run, frozen.
struct FrozenEncoder {
  std::unique_ptr<models::Autoencoder> autoencoder;
  pipelines::LatentEncoder encoder;
};

/// What names the latents of autoencoder.* in a cache: which it is, and how it computes. kIo.
[[nodiscard]] std::string autoencoder_key(const inference::AutoencoderOptions& options);

/// That of autoencoder.*; null without a path. Errors of opening it; kConfig where one of the sets
/// is a cache that another one made.
[[nodiscard]] std::unique_ptr<FrozenEncoder> open_encoder(
    const inference::AutoencoderOptions& options,
    std::initializer_list<const data::DataConfig*> sets, at::Device device);

/// The ranks that have the same samples, on a communicator of their own, where they encode some of
/// the run's pixels together; else this one alone. All ranks of the mesh call it.
[[nodiscard]] comm::Group encoding_ranks(const RunConfig& config, const FrozenEncoder* encoder,
                                         const parallel::Mesh& mesh);

/// kConfig where one of the sets takes the texts of a cache that another encoder made than
/// `text_encoder`, the path of text.encoder; nothing without a path. kIo.
void check_cached_texts(const std::string& text_encoder,
                        std::initializer_list<const data::DataConfig*> sets);

}  // namespace kinora::train
