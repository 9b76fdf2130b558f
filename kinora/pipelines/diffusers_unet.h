#pragma once

#include <string>

#include "kinora/models/model_config.h"
#include "kinora/pipelines/diffusers_config.h"

/// What config.json says of the U-Nets of Stable Diffusion in the folders of diffusers.
namespace kinora::pipelines {

/// What config.json is of, as _class_name.
inline constexpr const char* kUnetClass = "UNet2DConditionModel";

/// The keys below model of a recipe that it gives, as JSON. kConfig, naming the key, for all that
/// changes what is computed and that Kinora lacks.
[[nodiscard]] std::string unet_keys(const DiffusersConfig& config);

/// The keys of config.json that tell the model, as JSON.
[[nodiscard]] std::string describe_unet(const models::ModelConfig& model);

}  // namespace kinora::pipelines
