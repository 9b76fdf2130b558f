#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/kernels/weight_codes.h"
#include "kinora/nn/low_rank.h"

namespace kinora {
class Fields;
}

namespace kinora::inference {

/// The keys finetune.lora.*; their meanings stand in describe().
struct LoraConfig {
  std::vector<std::string> targets;
  nn::UpdateKind kind = nn::UpdateKind::kLora;
  int64_t rank = 8;
  double alpha = 8.0;
  int64_t conv_rank = 0;
  double conv_alpha = 0.0;
  int64_t factor = -1;
  bool rslora = false;
  bool dora = false;

  [[nodiscard]] bool any() const { return !targets.empty(); }
  /// Whether there are updates of which blocks' own kernels compute nothing.
  [[nodiscard]] bool needs_modules() const {
    return any() && (dora || kind != nn::UpdateKind::kLora);
  }
};

/// What becomes of positions of another size.
enum class PositionChoice : uint8_t { kSame, kMade, kInterpolated };

/// What frozen weights of blocks lie in.
enum class FrozenWeights : uint8_t { kFull, kInt8, kFp8, kNf4 };

/// Nothing: in the type that is computed in.
[[nodiscard]] std::optional<kernels::WeightFormat> format_of(FrozenWeights weights);

/// The keys finetune.*.
struct FinetuneConfig {
  std::vector<std::string> train;
  std::vector<std::string> freeze;
  std::vector<std::string> fresh;
  PositionChoice positions = PositionChoice::kSame;
  FrozenWeights frozen_weights = FrozenWeights::kFull;
  double offload = 0.0;
  LoraConfig lora;

  /// Whether parameters are frozen.
  [[nodiscard]] bool freezes() const { return !train.empty() || !freeze.empty() || lora.any(); }
  /// Whether frozen weights are held otherwise than they are read.
  [[nodiscard]] bool holds() const {
    return frozen_weights != FrozenWeights::kFull || offload > 0.0;
  }
};

void describe(Fields& fields, FinetuneConfig& config);

}  // namespace kinora::inference
