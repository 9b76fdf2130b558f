#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// Softmax attention of each text's tokens among themselves, with a bias by distance (T5; Raffel et
/// al. 2020, section 2.1). Texts of any lengths lie one after the other, a row a token:
///
///   S[i, j] = scale q_i k_j + bias[h, j - i],  out_i = sum over j of softmax(S)[i, j] v_j
///
/// The CPU reference; kernels/cuda/ragged_attention.h has the launcher.
namespace kinora::kernels {

/// A row of q, k, v and out has its heads one after the other, and the next row is `stride`
/// elements further.
struct RaggedAttention {
  int64_t texts = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t longest = 0;        ///< tokens of the longest text, at least 1
  DType type = DType::kBF16;  ///< of q, k, v, out: kBF16 or kF16; the CPU reference also kF32
  float scale = 1.0F;         ///< above 0

  const int32_t* offsets = nullptr;  ///< [texts + 1]: text t has the rows [offsets[t], [t + 1])
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;  ///< may be q
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t out_stride = 0;
  /// [heads, 2 reach - 1] of the distances 1 - reach to reach - 1; null: none.
  const float* bias = nullptr;
  int64_t reach = 0;  ///< at least `longest`
};

/// The CPU reference: plain loops, in double.
void ragged_attention(const RaggedAttention& call);

}  // namespace kinora::kernels
