#pragma once

#include <cstdint>

#include "kinora/diffusion/objective.h"
#include "kinora/inference/compare.h"
#include "kinora/inference/recipe.h"

namespace kinora::train {

/// `count` samples of the model's data, noised as by its validation (times evenly spread), of
/// latents that are drawn the means. Errors of opening data and autoencoder.
[[nodiscard]] inference::ComparedInput compared_input(const inference::ModelRecipe& recipe,
                                                      const diffusion::Objective& objective,
                                                      int64_t count, uint64_t seed);

}  // namespace kinora::train
