#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"

/// What the files of others call the tensors of a U-Net.
namespace kinora::models {

/// DiffusersFamily::naming: ours, in some files with other dims.
[[nodiscard]] nn::Naming unet_naming(const ModelConfig& config);

/// DiffusersFamily::find_naming.
[[nodiscard]] std::optional<nn::Naming> find_unet_naming(const std::vector<std::string>& names);

}  // namespace kinora::models
