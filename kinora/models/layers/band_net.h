#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/nn/bands.h"
#include "kinora/nn/module.h"

namespace kinora::models {

/// How large an activation [B, C, T, H, W] is.
struct ClipSize {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t frames = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t element_bytes = 4;

  [[nodiscard]] int64_t bytes() const {
    return batch * channels * frames * rows * columns * element_bytes;
  }
};

/// A layer that computes band by band.
class BandLayer : public nn::Module {
 public:
  virtual ~BandLayer() = default;

  /// x: [B, C, T, H, W] in bands.
  [[nodiscard]] virtual nn::Bands forward(nn::Bands x) const = 0;

  /// What forward() makes of such an activation; appends what it takes to `needs`.
  [[nodiscard]] virtual ClipSize plan(const ClipSize& in,
                                      std::vector<nn::BandNeed>* needs) const = 0;
};

/// Layers one after the other, computed within a budget of memory.
class BandNet : public nn::Module {
 public:
  /// `unit`: the input's rows come in such multiples, each of which becomes whole rows at the end.
  explicit BandNet(int64_t unit) : unit_(unit) {}

  /// Appends a layer under a name, which may be a path.
  template <typename Layer, typename... Arguments>
  void add(const std::string& name, Arguments&&... arguments) {
    layers_.push_back(std::make_unique<Layer>(std::forward<Arguments>(arguments)...));
    add_child(name, *layers_.back());
  }

  /// x: [B, C, T, H, W] of the parameters' type. `budget`: bytes that activations may take, 0: no
  /// limit. kConfig: they do not fit.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, int64_t budget) const;

  /// How forward() cuts such inputs.
  [[nodiscard]] nn::BandPlan plan(const ClipSize& in, int64_t budget, bool with_gradients) const;

 private:
  int64_t unit_;
  std::vector<std::unique_ptr<BandLayer>> layers_;
};

}  // namespace kinora::models
