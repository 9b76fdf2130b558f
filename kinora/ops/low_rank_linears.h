#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/block_launch.h"

/// Linears with a low-rank update as one product each, as kernels/low_rank.h has them. For the
/// files of this room only.
namespace kinora::ops {

/// A product with its update: x W^T with more columns, or dy W with more columns and rows.
struct JoinedProduct {
  Operand operand;
  LinearWeights weights;
};

/// Gradients of A and B that wait to be added. They belong to one pass: those of a pass that fails
/// half-way go with it.
class UpdateGradients {
 public:
  void wait(cuda::LowRankParts parts) { waiting_.push_back(std::move(parts)); }
  /// Adds all that wait, as one launch.
  void add();

 private:
  std::vector<cuda::LowRankParts> waiting_;
};

class LowRankLinears {
 public:
  /// Columns that a matrix leaves free behind its rows for the linear's update: its rank; 0 where
  /// there is no update, or no kernel for it.
  [[nodiscard]] static int64_t room(const LinearWeights& linear);
  /// [rows, columns] with room behind each row, or without where `room` is 0.
  [[nodiscard]] static at::Tensor empty(int64_t rows, int64_t columns, int64_t room,
                                        const at::TensorOptions& options);

  /// [x | low] [W | scale B]^T; sets x.low. x has room.
  [[nodiscard]] JoinedProduct forward(Operand& x, const LinearWeights& linear);
  /// [dy | dlow] [W ; A]. x and dy have room. x.low may be undefined: then it is made again.
  [[nodiscard]] JoinedProduct backward(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients);

 private:
  /// A frozen weight with room behind and below it: a copy, made again when the weight changed.
  [[nodiscard]] const at::Tensor& joined(const LinearWeights& linear);
  void write_low(Operand& x, const LinearWeights& linear);

  struct Copy {
    at::Tensor weight;  // held, so that nothing else comes to lie at its address
    int64_t version = -1;
    at::Tensor joined;
  };
  std::map<const void*, Copy> copies_;  // by the weight's address
};

}  // namespace kinora::ops
