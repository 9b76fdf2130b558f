#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kinora {
class Fields;
}

namespace kinora::train {

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

/// The keys lr.layer_decay and lr.factors.
struct LrFactors {
  double layer_decay = 1.0;
  std::vector<std::string> patterns;  ///< "PATTERN=FACTOR"
};

void describe(Fields& fields, FinetuneConfig& config);
void describe(Fields& fields, LrFactors& factors);

/// The parts of a "PATTERN=FACTOR".
struct LrFactor {
  std::string pattern;
  double factor = 1.0;
};
/// kConfig where it is none, or the factor is negative or not finite.
[[nodiscard]] LrFactor parse_lr_factor(const std::string& text);

}  // namespace kinora::train
