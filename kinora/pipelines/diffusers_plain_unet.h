#pragma once

#include <string>

#include "kinora/models/model_config.h"
#include "kinora/pipelines/diffusers_config.h"

/// What config.json says of diffusers' UNet2DModel, whose places attend to each other alone
/// (models::UnetAttends::kPlaces): latent diffusion's of faces and rooms, DDPM's of pixels.
namespace kinora::pipelines {

inline constexpr const char* kPlainUnetClass = "UNet2DModel";

/// Whether the model, a U-Net or not, is one.
[[nodiscard]] bool is_plain_unet(const models::ModelConfig& model);

/// unet_keys() and describe_unet() of it.
[[nodiscard]] std::string plain_unet_keys(const DiffusersConfig& config);
[[nodiscard]] std::string describe_plain_unet(const models::ModelConfig& model);

}  // namespace kinora::pipelines
