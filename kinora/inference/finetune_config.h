#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora {
class Fields;
}

namespace kinora::inference {

/// The keys finetune.lora.*; their meanings stand in describe().
struct LoraConfig {
  std::vector<std::string> targets;
  int64_t rank = 8;
  double alpha = 8.0;
  bool rslora = false;
  bool dora = false;

  [[nodiscard]] bool any() const { return !targets.empty(); }
};

/// What becomes of positions of another size.
enum class PositionChoice : uint8_t { kSame, kMade, kInterpolated };

/// The keys finetune.*.
struct FinetuneConfig {
  std::vector<std::string> train;
  std::vector<std::string> freeze;
  std::vector<std::string> fresh;
  PositionChoice positions = PositionChoice::kSame;
  LoraConfig lora;

  /// Whether parameters are frozen.
  [[nodiscard]] bool freezes() const { return !train.empty() || !freeze.empty() || lora.any(); }
};

void describe(Fields& fields, FinetuneConfig& config);

}  // namespace kinora::inference
