#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/kernels/fp8.h"

/// What a matrix product is; kernels/cuda/matmul.h computes it.
namespace kinora::kernels {

/// What is done to the product before it is written.
enum class Epilogue : uint8_t {
  kNone,
  kBias,         ///< + bias[n]
  kBiasGelu,     ///< GELU_tanh(product + bias)
  kBiasGeluAux,  ///< the same, and aux = product + bias
  kGeluGrad,     ///< output = product * GELU_tanh'(aux)
  /// The same, and bias_grad[n] = sum over m of the output (the bias gradient of the linear before
  /// the GELU), overwritten.
  kGeluGradBias,
  /// The product as it is; bias_grad[m] = sum over k of op(A)[m, k] (the bias gradient of a weight
  /// gradient dW = dY^T X), overwritten.
  kBiasGrad,
};

/// What the 8-bit values of an operand are multiplied by.
enum class Scaling : uint8_t {
  kTensor,    ///< one factor
  kRow128,    ///< a factor for each 128 elements of a row, as BlockQuantise (fp8.h) writes them
  kBlock128,  ///< a factor for each 128 x 128 elements, likewise
};

/// D[m, n] = op(A)[m, k] op(B)[k, n] (+ D), all row major: op(A) = A^T where transpose_a, A then
/// being stored [k, m]. fp32 accumulation (fp32 inputs: no TF32). Types of A and B: equal, or both
/// 8-bit floats, of which one at least is E4M3; D in the type of A, or in fp32; for 8-bit floats
/// bf16, fp16 or fp32, or E4M3 quantised by a given scale (both kTensor, nothing accumulated).
/// Hopper multiplies 8-bit floats only along adjacent elements: transpose_a = false, transpose_b =
/// true, and n and k multiples of 16; m, too, with scales of blocks.
struct MatmulProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType a_type = DType::kBF16;
  DType b_type = DType::kBF16;
  DType d_type = DType::kBF16;
  DType aux_type = DType::kBF16;
  /// kGeluGradBias, kBiasGrad. A 16-bit type costs one rounding of the sum, beside those of what is
  /// added up. Which types there are, the library says: fp32, or D's, or neither.
  DType bias_grad_type = DType::kF32;
  Epilogue epilogue = Epilogue::kNone;
  bool accumulate = false;  ///< add what D holds, before the epilogue
  /// 8-bit floats: sums stay in the tensor cores' accumulators of fewer bits. Faster; for forward
  /// passes only.
  bool fast_accumulation = false;
  /// 8-bit floats. Both kTensor, or one at least kRow128 and neither kTensor: then transpose_a =
  /// false, transpose_b = true, batch 1, and fast_accumulation has no effect. Of the GPUs, Hopper.
  Scaling a_scaling = Scaling::kTensor;
  Scaling b_scaling = Scaling::kTensor;
  /// Equal products at fixed distances (strides below, in elements). Above 1 only with kNone, and
  /// with kBias, all adding the same bias.
  int64_t batch = 1;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t d_stride = 0;
  /// Elements between rows; 0: rows are adjacent.
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldd = 0;

  bool operator==(const MatmulProblem&) const = default;
};

struct MatmulArguments {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;  ///< kBias, kBiasGelu, kBiasGeluAux: [n] in bias_type(problem)
  /// kBiasGeluAux: out, kGeluGrad and kGeluGradBias: in; [m, n] in aux_type, n % 8 == 0
  void* aux = nullptr;
  void* bias_grad = nullptr;  ///< kGeluGradBias: [n], kBiasGrad: [m], in bias_grad_type
  /// fp8: what A's values are multiplied by, in device memory; aligned to 16 bytes unless kTensor.
  /// On 16 bytes: the library refuses other addresses (seen with cuBLASLt 13.1 on an H200).
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  /// D in fp8, in device memory: what results are multiplied by, and then rounded; and the largest
  /// magnitude before that, overwritten.
  const float* d_scale = nullptr;
  float* d_amax = nullptr;
};

/// Whether the product has an array `aux`.
[[nodiscard]] inline bool has_aux(Epilogue epilogue) {
  return epilogue == Epilogue::kBiasGeluAux || epilogue == Epilogue::kGeluGrad ||
         epilogue == Epilogue::kGeluGradBias;
}

/// Whether the product writes `bias_grad`.
[[nodiscard]] inline bool has_bias_grad(Epilogue epilogue) {
  return epilogue == Epilogue::kGeluGradBias || epilogue == Epilogue::kBiasGrad;
}

/// The type of `bias`: D's, but bf16 where 8-bit floats give fp32 or 8-bit floats.
[[nodiscard]] inline DType bias_type(const MatmulProblem& problem) {
  const bool is_sixteen = problem.d_type == DType::kBF16 || problem.d_type == DType::kF16;
  return is_fp8(problem.a_type) && !is_sixteen ? DType::kBF16 : problem.d_type;
}

/// The type of the product's one vector, `bias` or `bias_grad`.
[[nodiscard]] inline DType vector_type(const MatmulProblem& problem) {
  return has_bias_grad(problem.epilogue) ? problem.bias_grad_type : bias_type(problem);
}

/// Elements of that vector.
[[nodiscard]] inline int64_t vector_size(const MatmulProblem& problem) {
  return problem.epilogue == Epilogue::kBiasGrad ? problem.m : problem.n;
}

}  // namespace kinora::kernels
