#pragma once

#include <memory>

#include "kinora/nn/low_rank.h"
#include "kinora/nn/module.h"

namespace kinora::nn {

/// A layer that computes with one weight and a bias, and may have a trained update of the weight:
/// Linear and Conv.
class WeightLayer : public Module {
 public:
  /// Adds a trained low-rank update and freezes what is there. Before the parameters have their
  /// memory.
  void adapt(const LowRankOptions& options);
  /// Null: none.
  [[nodiscard]] const LowRankUpdate* update() const { return update_.get(); }

  Parameter weight;
  Parameter bias;  ///< registered if there is one

 protected:
  WeightLayer() = default;
  ~WeightLayer() = default;

 private:
  std::unique_ptr<LowRankUpdate> update_;
};

}  // namespace kinora::nn
