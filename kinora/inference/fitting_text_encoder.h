#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "kinora/checkpoint/adapter.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::inference {

/// Where a text encoder is opened for a drawing, and what it may take.
struct TextEncoderRoom {
  at::Device device = at::kCPU;
  at::ScalarType type = at::kFloat;
  std::optional<models::EightBit> eight_bits = std::nullopt;  ///< as TextEncoderOptions'
  double memory_gib = 0.0;  ///< most for its weights; 0: what is free on the device
  bool says = true;         ///< logs it where the weights do not fit
  std::vector<checkpoint::WeightedAdapter> adapters = {};  ///< as TextEncoderOptions'
};

/// pipelines::open_text_encoder(). Where the weights do not fit, the blocks are streamed from the
/// file, not in 8 bits then, which takes longer. Its errors.
[[nodiscard]] std::unique_ptr<models::TextEncoder> open_fitting_text_encoder(
    const std::filesystem::path& path, const TextEncoderRoom& room);

}  // namespace kinora::inference
