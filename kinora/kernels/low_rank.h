#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// The narrow products of a linear's low-rank update, W + scale B A with A [rank, in] and
/// B [out, rank] (Hu et al. 2021, "LoRA", section 4.1).
///
/// The wide product takes in the update without a pass of its own. With low = x A^T behind the
/// columns of x, and scale B behind those of W,
///
///   y = x W^T + scale low B^T = [x | low] [W | scale B]^T
///
/// and with dlow = scale dy B behind the columns of dy, and A below W,
///
///   dx = dy W + dlow A = [dy | dlow] [W ; A]
///
/// So the matrices have room behind their rows, and W, or a copy of it, has room behind and below
/// it, whose corner is never read.
///
/// This header has the arguments and the CPU reference; kernels/cuda/low_rank.h the launchers.
namespace kinora::kernels {

struct LowRankForward {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t rank = 0;
  DType type = DType::kBF16;  ///< of all matrices: kBF16, kF16
  float scale = 1.0F;

  const void* x = nullptr;  ///< [rows, in]
  int64_t x_stride = 0;     ///< elements between rows, here and below
  const void* a = nullptr;  ///< [rank, in]
  int64_t a_stride = 0;
  const void* b = nullptr;  ///< [out, rank], contiguous
  void* low = nullptr;      ///< [rows, rank]: x A^T; null: not wanted, and x is not read
  int64_t low_stride = 0;
  void* behind = nullptr;  ///< [out, rank], behind W: gets scale B; null: no room there
  void* below = nullptr;   ///< [rank, in], below W: gets A; null: no room there
  int64_t weight_stride = 0;
};

/// Gradients, fp32, are added up: a_grad += dlow^T x, b_grad += scale dy^T low.
struct LowRankBackward {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t rank = 0;
  DType type = DType::kBF16;
  float scale = 1.0F;

  const void* dy = nullptr;  ///< [rows, out]
  int64_t dy_stride = 0;
  const void* x = nullptr;  ///< [rows, in]
  int64_t x_stride = 0;
  const void* low = nullptr;  ///< [rows, rank]
  int64_t low_stride = 0;
  const void* b = nullptr;  ///< [out, rank], contiguous
  void* dlow = nullptr;     ///< [rows, rank]: scale dy B
  int64_t dlow_stride = 0;
  float* a_grad = nullptr;  ///< [rank, in]
  int64_t a_grad_stride = 0;
  float* b_grad = nullptr;  ///< [out, rank], contiguous
};

/// The CPU reference: plain loops, in double.
void low_rank_forward(const LowRankForward& call);
void low_rank_backward(const LowRankBackward& call);

}  // namespace kinora::kernels
