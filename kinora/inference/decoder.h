#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

#include "kinora/inference/recipe.h"
#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::inference {

/// What to take instead of what the run says.
struct DecoderChoice {
  std::string path = {};                  ///< of the autoencoder; empty: autoencoder.path
  std::optional<double> memory_gib = {};  ///< 0: no limit; nothing: autoencoder.memory_gib
};

/// The autoencoder's folder or file; empty: nobody names one. kIo where the recipe's is not there.
[[nodiscard]] std::string decoder_path(const ModelRecipe& recipe, const DecoderChoice& choice);

/// What open_decoder() refuses, found out without reading weights.
void check_decoder(const ModelRecipe& recipe, const DecoderChoice& choice);

/// What makes pixels of the latents that a model draws; null: nobody names an autoencoder.
/// kIo where none is there, kConfig where it does not belong to the model.
[[nodiscard]] std::unique_ptr<models::Autoencoder> open_decoder(const ModelRecipe& recipe,
                                                                const DecoderChoice& choice,
                                                                at::Device device);

}  // namespace kinora::inference
