#pragma once

#include <c10/core/Device.h>

#include <string>

#include "apps/kinora/options/sample.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/sample_folder.h"

/// Clips that are drawn small, doubled as latents, and then drawn on (--upsample).
namespace kinora::apps {

/// How the small ones are drawn: half as high and wide, into small/ of --out, all of them with
/// their latents. recipe: of the size that is drawn at last. kConfig where that has no half, and
/// for options that do not go with it; errors of pipelines::latent_upsampler_config.
[[nodiscard]] SampleArguments small_arguments(const SampleArguments& arguments,
                                              const inference::ModelRecipe& recipe);

/// Doubles the latents that small_arguments() drew: small/upsampled.safetensors of --out. recipe:
/// as there. kIo, kConfig.
void upsample_small(const SampleArguments& arguments, const inference::ModelRecipe& recipe,
                    at::Device device);

/// How they are drawn on: the last of --upsample-steps.
[[nodiscard]] SampleArguments refining_arguments(SampleArguments arguments);

/// What decided what they begin with, in the place of that file. small: the key of the small ones.
[[nodiscard]] std::string words_of_upsampled(const SampleArguments& arguments,
                                             const inference::DrawingKey& small);

}  // namespace kinora::apps
