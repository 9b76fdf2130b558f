#pragma once

#include "kinora/models/transformers/transformer_family.h"
#include "kinora/models/transformers/vdit.h"

namespace kinora::models {

/// Latte of OpenDiT (after Ma et al. 2024, variant 1): VDiT whose blocks attend within frames and
/// through time by turns. Tokens get their position in time before the first block through time.
class Latte : public VDiT {
 public:
  explicit Latte(const ModelConfig& config) : VDiT(config) {}
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config) {
    const TransformerMacs m(config);
    return m.model(m.mlp + (m.attention(m.places) + m.attention(m.frames)) / 2 + m.modulation);
  }

 protected:
  [[nodiscard]] nn::Span span_of(int64_t block) const override {
    return block % 2 == 0 ? nn::Span::kFrame : nn::Span::kTime;
  }
  [[nodiscard]] int64_t first_block_in_time() const override { return 1; }
};

}  // namespace kinora::models
