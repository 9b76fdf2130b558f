#pragma once

#include <string>

#include "kinora/models/families.h"
#include "kinora/pipelines/diffusers_config.h"

/// What config.json says of DiT, PixArt and Latte in the folders of diffusers.
namespace kinora::pipelines {

/// Whether config.json is of that family of transformers, which diffusers has.
[[nodiscard]] bool is_transformer_of(const DiffusersConfig& config, const models::Family& family);

/// The keys below model of a recipe that it gives, as JSON. kConfig for what Kinora lacks.
[[nodiscard]] std::string transformer_keys(const DiffusersConfig& config,
                                           const models::Family& family);

/// The keys of config.json that tell the model, as JSON. kConfig for models that diffusers cannot
/// describe.
[[nodiscard]] std::string describe_transformer(const models::ModelConfig& model,
                                               const models::Family& family);

}  // namespace kinora::pipelines
