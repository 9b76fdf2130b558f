#pragma once

#include <cstdint>
#include <vector>

#include "kinora/nn/weight_layer.h"
#include "kinora/ops/linear_weights.h"

namespace kinora::nn {

struct LinearOptions {
  bool fp32_island = false;  ///< see Parameter
  bool has_bias = true;
};

/// y = x W^T + b with `weight` [out, in] and `bias` [out], computed in the weight's dtype.
class Linear : public WeightLayer {
 public:
  /// The bias starts at zero.
  Linear(int64_t in_features, int64_t out_features, Init weight_init,
         const LinearOptions& options = {});

  /// x: [..., in], any floating dtype. Returns [..., out] in the weight's dtype.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  /// For the fast path, which computes without this module. kConfig for an update other than LoRA,
  /// which only forward() computes.
  [[nodiscard]] ops::LinearWeights weights() const;
  /// weights().number, and the first of parts()'.
  void set_number(int64_t number) { number_ = number; }

  enum class Dim : uint8_t { kOutputs, kInputs };
  /// The fast path computes some outputs, or inputs, apart from the others: so many each.
  void set_parts(Dim dim, std::vector<int64_t> sizes);
  /// 1 where there are none.
  [[nodiscard]] int64_t num_parts() const;
  /// weights(), or those of each part, numbered one after another. Of parts of the inputs the last
  /// has the bias.
  [[nodiscard]] std::vector<ops::LinearWeights> parts() const;

 private:
  int64_t number_ = -1;
  Dim parted_ = Dim::kOutputs;
  std::vector<int64_t> part_sizes_;
};

}  // namespace kinora::nn
