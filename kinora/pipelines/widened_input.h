#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/models/model_config.h"

namespace kinora::pipelines {

/// A weight that reads more channels than it did.
struct WidenedInput {
  std::string weight;    ///< "conv_in.weight"
  int64_t channels = 0;  ///< that are new
};

/// Where `tensors`, weights of a model that is shown no picture beside x_t, are to become those of
/// `model`, which is: adds the channels that its first layer reads besides, with weights of zero
/// (as Rombach et al. 2022 and Brooks et al. 2023 did). Nothing where there was nothing to do.
[[nodiscard]] std::optional<WidenedInput> widen_input(const models::ModelConfig& model,
                                                      checkpoint::LateTensors& tensors);

}  // namespace kinora::pipelines
