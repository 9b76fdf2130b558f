#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/kernels/fp8.h"

/// Activation functions of a matrix [rows, width], contiguous, with the quantised copies and the
/// bias gradient that its neighbours need. Both functions are u * sigmoid(s(u)):
///
///   GELU (tanh; Hendrycks and Gimpel 2016): s = 2 sqrt(2 / pi) (u + 0.044715 u^3)
///   SiLU: s = u
///
/// since (1 + tanh x) / 2 = sigmoid(2 x), which keeps its digits where tanh is near -1. Arithmetic
/// is fp32.
///
/// This header has the arguments and the CPU reference; kernels/cuda/activation.h the launchers.
namespace kinora::kernels {

enum class Activation : uint8_t { kGeluTanh, kSilu };

struct ActivationForward {
  Activation function = Activation::kGeluTanh;
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of u, g: kF32, kBF16, kF16

  const void* u = nullptr;
  void* g = nullptr;  ///< may be u; null: not written
  Fp8Output g_fp8;    ///< a quantised copy of g, made of its unrounded values
};

/// g = f(u) * v, of a gated linear unit (Shazeer 2020), forward alone: each row of `uv` has u and
/// then v, `width` elements each.
struct GatedActivation {
  Activation function = Activation::kGeluTanh;
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of uv, g: kF32, kBF16, kF16

  const void* uv = nullptr;  ///< [rows, 2 width]
  void* g = nullptr;         ///< may be uv, in the place of u
  int64_t g_stride = 0;      ///< elements from row to row of g
};

/// du = dg * f'(u), and whatever else is wanted.
struct ActivationBackward {
  Activation function = Activation::kGeluTanh;
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of u, dg, du

  const void* dg = nullptr;
  const void* u = nullptr;
  void* du = nullptr;          ///< may be dg or u; null: not written
  Fp8Output du_fp8;            ///< a quantised copy of du, made of its unrounded values
  float* bias_grad = nullptr;  ///< [width], += sum over rows of the unrounded du; null: not wanted
};

/// The CPU reference: plain loops, in double.
void activation_forward(const ActivationForward& call);
void gated_activation(const GatedActivation& call);
void activation_backward(const ActivationBackward& call);

}  // namespace kinora::kernels
