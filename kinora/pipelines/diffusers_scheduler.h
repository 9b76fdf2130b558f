#pragma once

#include <filesystem>
#include <string>

#include "kinora/diffusion/objective_config.h"

/// What a model of diffusers was trained on, in its scheduler_config.json.
namespace kinora::pipelines {

/// The keys below objective of a recipe, as JSON: what is predicted and on which chain. How a
/// scheduler samples is not read. kConfig for flows and for chains that Kinora lacks, kIo for a
/// file that is none.
[[nodiscard]] std::string objective_recipe(const std::filesystem::path& scheduler_config);

/// The file of a DDIMScheduler for an iddpm objective. version: of diffusers.
[[nodiscard]] std::string describe_scheduler(const diffusion::ObjectiveConfig& objective,
                                             const std::string& version);

}  // namespace kinora::pipelines
