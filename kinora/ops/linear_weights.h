#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/ops/host_product.h"

namespace kinora::ops {

/// A low-rank update of some rows of a weight, and so of some columns of y (Hu et al. 2021, "LoRA",
/// section 4.1): y += scale (x A^T) B^T, in the compute type, and where backward adds the gradients
/// (fp32; undefined outside of training).
struct LowRankWeights {
  at::Tensor a;  ///< [rank, in]
  at::Tensor b;  ///< [rows, rank]
  at::Tensor a_grad;
  at::Tensor b_grad;
  double scale = 1.0;
  int64_t first_row = 0;  ///< of those that it changes

  [[nodiscard]] int64_t rank() const { return a.size(0); }
  [[nodiscard]] int64_t rows() const { return b.size(0); }
};

/// Weights of y = x W^T + b in the compute type, and where backward adds their gradients (fp32; may
/// be undefined: outside of training, and where they are frozen).
struct LinearWeights {
  at::Tensor weight;  ///< [out, in]
  at::Tensor bias;    ///< [out]
  at::Tensor weight_grad;
  at::Tensor bias_grad;
  /// The linear's number in its model, by which it is known to Fp8; negative: never in fp8.
  int64_t number = -1;
  /// Of a part of a linear: the number of the first part. All parts compute in fp8, or none. Those
  /// of other linears: negative.
  int64_t first_part = -1;
  /// Of rows that no two have in common: of linears that were merged each has its own.
  std::vector<LowRankWeights> updates{};
  /// Of a weight whose memory has room for them (nn::Parameter::room): columns that are free behind
  /// its rows, and rows below them. Parts have what is right beside them.
  int64_t free_columns = 0;
  int64_t free_rows = 0;

  /// Set: `weight` has a shape and a type alone, and what it is multiplied with goes there. Only of
  /// linears that modulate blocks (block_stack.h), where neither they nor their input are trained.
  HostProduct at_host{};

  [[nodiscard]] bool has_room() const { return free_columns > 0 || free_rows > 0; }
};

/// The linear that makes columns [first, first + count) of y, without a number. Its gradients and
/// updates are views.
[[nodiscard]] LinearWeights some_outputs(const LinearWeights& linear, int64_t first, int64_t count);
/// The linear of inputs [first, first + count): y is the sum over all inputs. has_bias: whether
/// this one adds it.
[[nodiscard]] LinearWeights some_inputs(const LinearWeights& linear, int64_t first, int64_t count,
                                        bool has_bias);

/// Linears on the same input as few products as can be: neighbours whose weights, biases and
/// gradients each lie one behind the other in memory become one, with the updates of all.
[[nodiscard]] std::vector<LinearWeights> merge_adjacent(const std::vector<LinearWeights>& linears);

}  // namespace kinora::ops
