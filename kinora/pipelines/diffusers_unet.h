#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/diffusers_config.h"

/// What config.json says of the U-Nets of Stable Diffusion, and of their ControlNets, in the
/// folders of diffusers.
namespace kinora::pipelines {

/// What config.json is of, as _class_name.
inline constexpr const char* kUnetClass = "UNet2DConditionModel";
inline constexpr const char* kControlClass = "ControlNetModel";

/// Whether each level attends: whether its block in the list `key` is `with`, which otherwise must
/// be `without`; kConfig.
[[nodiscard]] std::vector<bool> attending_levels(const DiffusersConfig& config, const char* key,
                                                 const char* with, const char* without,
                                                 const std::vector<std::string>& otherwise,
                                                 size_t levels);

/// The keys below model of a recipe that it gives, as JSON. kConfig, naming the key, for all that
/// changes what is computed and that Kinora lacks.
[[nodiscard]] std::string unet_keys(const DiffusersConfig& config);

/// The keys of config.json that tell the model, as JSON.
[[nodiscard]] std::string describe_unet(const models::ModelConfig& model);

/// `model`, which is resolved, with the ControlNets of these folders beside it, or with those that
/// it has, and with what their residuals are multiplied by; []: as it says. kConfig, naming the
/// file, the key and both values, for one that is of another U-Net or that Kinora lacks, and for
/// another number of scales; kIo.
[[nodiscard]] models::ModelConfig with_controls(models::ModelConfig model,
                                                const std::vector<std::filesystem::path>& folders,
                                                const std::vector<double>& scales);

/// Where `tensors`, weights of a U-Net, lack those of the model's ControlNets: lets these begin as
/// copies of the way down and the middle (ControlNetModel.from_unet), but for what a U-Net has not.
void start_controls(const models::ModelConfig& model, checkpoint::LateTensors& tensors);

/// The keys of config.json of a ControlNet of the model.
[[nodiscard]] std::string describe_control(const models::ModelConfig& model);

}  // namespace kinora::pipelines
