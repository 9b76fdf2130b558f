#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"

/// Keys of diffusers' transformers, as the paths of our modules.
namespace kinora::models {

/// Of DiTTransformer2DModel and PixArtTransformer2DModel (both once Transformer2DModel), which keep
/// queries, keys and values apart. Every block of the former repeats the embedders. kConfig for
/// architectures that diffusers lacks.
[[nodiscard]] nn::Naming diffusers_naming(const ModelConfig& config);

/// The same for a file with these names; nothing if they are not diffusers'.
[[nodiscard]] std::optional<nn::Naming> find_diffusers_naming(
    const std::vector<std::string>& names);

}  // namespace kinora::models
