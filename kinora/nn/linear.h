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
///
/// Where ranks divide it (Cut), x and y are of those features that are here.
class Linear : public WeightLayer {
 public:
  /// The bias starts at zero.
  Linear(int64_t in_features, int64_t out_features, Init weight_init,
         const LinearOptions& options = {});

  /// x: [..., in], any floating dtype. Returns [..., out] in the weight's dtype.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  /// For the fast path, which computes without this module. kConfig for an update other than LoRA,
  /// which only forward() computes. Where ranks divide the inputs, what each makes is to be summed,
  /// and the first alone adds the bias.
  [[nodiscard]] ops::LinearWeights weights() const;
  /// weights().number, and the first of parts()'.
  void set_number(int64_t number) { number_ = number; }

  using WeightLayer::set_cut;
  /// The fast path computes some outputs, or inputs, apart from the others: so many each of those
  /// that there are where nobody divides them.
  void set_parts(Cut::Dim dim, std::vector<int64_t> sizes);
  /// 1 where there are none.
  [[nodiscard]] int64_t num_parts() const;
  /// weights(), or those of each part, numbered one after another. Of parts of the inputs the last
  /// has the bias.
  [[nodiscard]] std::vector<ops::LinearWeights> parts() const;

 private:
  /// Whether y is the sum of what ranks make of their inputs.
  [[nodiscard]] bool is_sum() const { return is_divided() && cut()->dim == Cut::Dim::kInputs; }

  int64_t number_ = -1;
  Cut::Dim parted_ = Cut::Dim::kOutputs;
  std::vector<int64_t> part_sizes_;
};

}  // namespace kinora::nn
