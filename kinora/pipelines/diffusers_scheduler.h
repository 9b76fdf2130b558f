#pragma once

#include <filesystem>
#include <string>

#include "kinora/diffusion/objective_config.h"

/// What a model of diffusers was trained on and how it is sampled, in its scheduler_config.json.
namespace kinora::pipelines {

/// The keys below objective of a recipe, as JSON: what is predicted and on which chain. kConfig for
/// flows and for chains that Kinora lacks, kIo for a file that is none.
[[nodiscard]] std::string objective_recipe(const std::filesystem::path& scheduler_config);

/// The keys below sample of a recipe that the scheduler gives, as JSON: the method and its
/// timesteps, not the number of steps. kConfig for schedulers and options that Kinora lacks, kIo
/// for a file that is none.
[[nodiscard]] std::string sampling_recipe(const std::filesystem::path& scheduler_config);

/// The file of a DDIMScheduler for an iddpm objective. version: of diffusers.
[[nodiscard]] std::string describe_scheduler(const diffusion::ObjectiveConfig& objective,
                                             const std::string& version);

}  // namespace kinora::pipelines
