#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/block_launch.h"

/// Linears with low-rank updates as one product each, as kernels/low_rank.h has them. For the files
/// of this room only.
namespace kinora::ops {

/// A product with its updates: x W^T with more columns, or dy W with more columns and rows. Where
/// the weight is a part of one, and other parts lie where these would be, what they add is apart.
struct JoinedProduct {
  Operand operand;
  LinearWeights weights;
  at::Tensor addend = {};  ///< undefined: none
};

/// A linear's updates as one: A one below the other, B each in its own rows and columns, with zeros
/// elsewhere and up to a rank that kernels have.
struct JoinedFactors {
  at::Tensor a;  ///< [rank, in]
  at::Tensor b;  ///< [out, rank]
  double scale = 1.0;
};
/// That rank: 8, 16, 32 or 64; 0 where the updates' ranks are more, and where they cannot be one:
/// of unlike scales.
[[nodiscard]] int64_t joined_rank(const LinearWeights& linear);
/// Whether there is one update, which is as it must be.
[[nodiscard]] bool is_joined(const LinearWeights& linear);
/// Copies the factors of all updates to where they belong in the zeros of `factors`.
void join(const LinearWeights& linear, const JoinedFactors& factors);
/// Adds to each update its part of the gradients of the joined A and B.
void add_parts(const std::vector<LowRankWeights>& updates, const at::Tensor& a_grad,
               const at::Tensor& b_grad);

/// Gradients of A and B that wait to be added. They belong to one pass: those of a pass that fails
/// half-way go with it.
class UpdateGradients {
 public:
  void wait(cuda::LowRankParts parts) { waiting_.push_back(std::move(parts)); }
  /// The same of joined updates, whose gradients are zeros in a_grad [rank, in] and b_grad
  /// [out, rank].
  void wait(cuda::LowRankParts parts, const LinearWeights& linear, const at::Tensor& a_grad,
            const at::Tensor& b_grad);
  /// Adds all that wait: as one launch, and one for each factor that was joined.
  void add();

 private:
  struct Joined {
    std::vector<LowRankWeights> updates;
    at::Tensor a_grad, b_grad;
  };
  std::vector<cuda::LowRankParts> waiting_;
  std::vector<Joined> joined_;
};

class LowRankLinears {
 public:
  /// joined_rank() of the linear's updates where there is a kernel for it, else 0: the columns that
  /// a matrix leaves free behind its rows, where the product is to take the updates in.
  [[nodiscard]] static int64_t room(const LinearWeights& linear);
  /// The same for the memory of a weight [out, in] with one update of `rank`, where that is free of
  /// choice (nn::Parameter::room).
  [[nodiscard]] static int64_t room_beside(int64_t out, int64_t in, int64_t rank,
                                           at::ScalarType type);
  /// [rows, columns] with room behind each row, or without where `room` is 0.
  [[nodiscard]] static at::Tensor empty(int64_t rows, int64_t columns, int64_t room,
                                        const at::TensorOptions& options);

  /// [x | low] [W | scale B]^T, or x W^T and scale low B^T. x has room; x.low is made unless it is
  /// there.
  [[nodiscard]] JoinedProduct forward(Operand& x, const LinearWeights& linear);
  /// [dy | dlow] [W ; A], or dy W and dlow A. x and dy have room. x.low may be undefined: then it
  /// is made again.
  [[nodiscard]] JoinedProduct backward(const Operand& dy, Operand& x, const LinearWeights& linear,
                                       UpdateGradients& gradients);

  /// Beside a product that does not take them in, of operands without room and a linear with
  /// room(): what the updates add to y. x.low is made unless it is there.
  [[nodiscard]] static at::Tensor forward_apart(Operand& x, const LinearWeights& linear);
  /// What they add to dx. x.low as in backward().
  [[nodiscard]] static at::Tensor backward_apart(const Operand& dy, Operand& x,
                                                 const LinearWeights& linear,
                                                 UpdateGradients& gradients);

  /// Weights take turns at the same addresses: nothing beside one outlives its use.
  void take_turns() { take_turns_ = true; }

 private:
  /// A weight and what stands beside it.
  struct Joined {
    at::Tensor weight = {};  // held, so that nothing else comes to lie at its address
    int64_t version = -1;
    at::Tensor matrix = {};      // the weight, or a copy, that has room behind and below it
    JoinedFactors factors = {};  // of several updates, or one that is not as it must be
  };
  [[nodiscard]] static Joined new_joined(const LinearWeights& linear);
  /// The update's own where it is as it must be, else copies.
  [[nodiscard]] static JoinedFactors new_factors(const LinearWeights& linear);
  /// Makes x.low apart from x.
  static void make_low(Operand& x, const LinearWeights& linear, const JoinedFactors& factors);
  /// Writes dlow [R, rank], and has the gradients of the factors wait.
  static void add_gradients(const Operand& dy, const Operand& x, const at::Tensor& dlow,
                            const JoinedFactors& factors, const LinearWeights& linear,
                            UpdateGradients& gradients);
  /// The weight itself, where its memory has room; else a copy, made again when the weight changed,
  /// or for each use of one that is not kept.
  [[nodiscard]] Joined& joined_of(const LinearWeights& linear);
  /// Whether what stands beside a weight outlives its use: where the weight has room, and of the
  /// others that of the first ones, up to kMostKept bytes.
  [[nodiscard]] bool is_kept(const LinearWeights& linear);
  /// As the last write() has left them.
  [[nodiscard]] static JoinedFactors factors_of(const Joined& joined, const LinearWeights& linear);
  /// Writes the factors beside the weight, and x.low if it is undefined.
  Joined& write(Operand& x, const LinearWeights& linear);

  /// Of all copies together. Making one anew takes 466 / R of its product's time for R rows, at
  /// 700 TFLOP/s and 3 TB/s.
  static constexpr int64_t kMostKept = int64_t{4} << 30;

  // By the weight's storage and its place there: a dry run has no addresses.
  std::map<std::pair<const void*, int64_t>, Joined> kept_;
  int64_t copied_ = 0;  // bytes of copies in kept_
  bool take_turns_ = false;
  Joined turn_;  // of the weight that was used last
};

}  // namespace kinora::ops
