#pragma once

// Attention of sequences of at most 32 tokens, for one head_dim: the frames of a clip at one place.
//
// Layout: a warp has a head of a sequence, four warps a block; no barriers but the warp's. Q, K, V
// (backward: dO, too) come to shared memory with one round of copies; scores and probabilities
// never leave registers. Backward works on S^T = K Q^T, where P^T and dS^T go from accumulators to
// operands in registers; dS for dQ is dS^T transposed there (movmatrix). Since a warp sees all keys
// of its queries, delta = rowsum(dO O) = rowsum(P dP), and O is not read.
//
// Speed: bound by memory. Of 16 tokens of head_dim 72 a warp has 9 KB on their way, and an SM 24
// warps. 2.4 KB in and out a tensor and 80 (backward) products of m16n8k16 are 0.15 cycles a byte.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_plan.h"
#include "kinora/kernels/cuda/attention_tile.cuh"

namespace kinora::kernels::cuda::attention {

inline constexpr int kShortWarps = 4;  // of a block

/// Sequences of at most 16 kTiles tokens.
template <int kHeadDim, int kTiles>
struct ShortTraits {
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kMatrixBytes = kRows * Row<kHeadDim>::kPitch;
};

/// Tiles of 16 tokens that a head_dim may have: an accumulator of all fits into registers.
template <int kHeadDim>
inline constexpr int kMostShortTiles = kHeadDim <= 96 ? 2 : 1;

/// The head of a sequence that the warp has; there may be fewer than warps.
struct ShortItem {
  int64_t index;
  int64_t b;
  int64_t h;

  __device__ explicit ShortItem(const AttentionShape& shape)
      : index(static_cast<int64_t>(blockIdx.x) * kShortWarps + (threadIdx.x >> 5)),
        b(index / shape.heads),
        h(index - b * shape.heads) {}
};

/// Starts copying the rows of a head; zeros behind them.
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void copy_rows(uint32_t target, const HeadsView& view,
                                          const ShortItem& item, int num_rows, int lane) {
  using R = Row<kHeadDim>;
  constexpr int kCount = ShortTraits<kHeadDim, kTiles>::kRows * R::kChunks;
  const uint16_t* rows = row_of(view, item.b, 0, item.h);
#pragma unroll
  for (int first = 0; first < kCount; first += 32) {
    const int i = first + lane;
    if (i < kCount) {
      const int row = i / R::kChunks;
      const int chunk = i - row * R::kChunks;
      const bool valid = row < num_rows;
      copy_async(target + row * R::kPitch + chunk * 16,
                 rows + (valid ? row : 0) * view.row_stride + chunk * 8, valid);
    }
  }
}

/// Writes the first num_rows of an accumulator's rows, times a factor.
template <typename T, int kHeadDim, int kTiles>
__device__ __forceinline__ void store_rows(const HeadsView& view, const ShortItem& item,
                                           const float (&acc)[kTiles][kHeadDim / 8][4],
                                           float factor, int num_rows, int lane) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + (lane >> 2);
      const bool valid = row < num_rows;
      uint32_t words[kHeadDim / 8];
#pragma unroll
      for (int c = 0; c < kHeadDim / 8; ++c) {
        words[c] = pack<T>(acc[m][c][2 * half] * factor, acc[m][c][2 * half + 1] * factor);
      }
      store_row(row_of(view, item.b, valid ? row : 0, item.h), valid, lane & 3, words);
    }
  }
}

template <typename T, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(32 * kShortWarps)
    short_forward_kernel(const __grid_constant__ AttentionForward call) {
  using Traits = ShortTraits<kHeadDim, kTiles>;
  constexpr int kColumns = 2 * kTiles;  // tiles of 8 keys
  const AttentionShape& shape = call.shape;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const ShortItem item(shape);
  if (item.b >= shape.batch) {
    return;
  }
  const auto queries = static_cast<int>(shape.query_length);
  const auto keys = static_cast<int>(shape.key_length);
  const uint32_t q = shared_base() + (threadIdx.x >> 5) * 3 * Traits::kMatrixBytes;
  const uint32_t k = q + Traits::kMatrixBytes;
  const uint32_t v = k + Traits::kMatrixBytes;
  copy_rows<kHeadDim, kTiles>(q, call.q, item, queries, lane);
  copy_rows<kHeadDim, kTiles>(k, call.k, item, keys, lane);
  copy_rows<kHeadDim, kTiles>(v, call.v, item, keys, lane);
  commit_copies();
  wait_copies<0>();
  __syncwarp();

  float s[kTiles][kColumns][4] = {};
  multiply_rows<T, kHeadDim>(s, q, k, lane);
  const float scale_log2 = shape.scale * kLog2E;
  uint32_t p[kTiles][kColumns][2];
  float inverse_sums[kTiles][2];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[m][n][2 * half + i];
          score = n * 8 + 2 * (lane & 3) + i < keys ? score * scale_log2 : -INFINITY;
          largest = fmaxf(largest, score);
        }
      }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float low = exp2_approx(s[m][n][2 * half] - largest);
        const float high = exp2_approx(s[m][n][2 * half + 1] - largest);
        sum += low + high;
        p[m][n][half] = pack<T>(low, high);
      }
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      inverse_sums[m][half] = 1.0F / sum;
      const int row = m * 16 + half * 8 + (lane >> 2);
      if (call.lse != nullptr && (lane & 3) == 0 && row < queries) {
        call.lse[item.index * queries + row] = (largest + __log2f(sum)) * kLn2;
      }
    }
  }
  float out[kTiles][kHeadDim / 8][4] = {};
  multiply_packed<T, kHeadDim, kTiles, kColumns>(out, p, v, lane);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int c = 0; c < kHeadDim / 8; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[m][c][i] *= inverse_sums[m][i / 2];
      }
    }
  }
  store_rows<T, kHeadDim, kTiles>(call.out, item, out, 1.0F, queries, lane);
}

template <typename T, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(32 * kShortWarps)
    short_backward_kernel(const __grid_constant__ AttentionBackward call) {
  using Traits = ShortTraits<kHeadDim, kTiles>;
  constexpr int kColumns = 2 * kTiles;  // tiles of 8 queries
  const AttentionShape& shape = call.shape;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const ShortItem item(shape);
  if (item.b >= shape.batch) {
    return;
  }
  const auto queries = static_cast<int>(shape.query_length);
  const auto keys = static_cast<int>(shape.key_length);
  const uint32_t q = shared_base() + (threadIdx.x >> 5) * 4 * Traits::kMatrixBytes;
  const uint32_t k = q + Traits::kMatrixBytes;
  const uint32_t v = k + Traits::kMatrixBytes;
  const uint32_t dout = v + Traits::kMatrixBytes;
  copy_rows<kHeadDim, kTiles>(q, call.q, item, queries, lane);
  copy_rows<kHeadDim, kTiles>(k, call.k, item, keys, lane);
  copy_rows<kHeadDim, kTiles>(v, call.v, item, keys, lane);
  copy_rows<kHeadDim, kTiles>(dout, call.dout, item, queries, lane);
  commit_copies();
  float lse[kColumns][2];  // of the lane's queries, in powers of two
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = n * 8 + 2 * (lane & 3) + i;
      lse[n][i] = query < queries ? call.lse[item.index * queries + query] * kLog2E : INFINITY;
    }
  }
  wait_copies<0>();
  __syncwarp();

  float p[kTiles][kColumns][4] = {};  // S^T, then P^T
  multiply_rows<T, kHeadDim>(p, k, q, lane);
  float ds[kTiles][kColumns][4] = {};  // dP^T, then dS^T / scale
  multiply_rows<T, kHeadDim>(ds, v, dout, lane);
  const float scale_log2 = shape.scale * kLog2E;
  uint32_t p_words[kTiles][kColumns][2];
  uint32_t ds_words[kTiles][kColumns][2];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    float delta[2] = {};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_key = m * 16 + i / 2 * 8 + (lane >> 2) < keys;
        p[m][n][i] = is_key ? exp2_approx(p[m][n][i] * scale_log2 - lse[n][i % 2]) : 0.0F;
        delta[i % 2] += p[m][n][i] * ds[m][n][i];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      delta[i] += shuffle_xor(delta[i], 4);
      delta[i] += shuffle_xor(delta[i], 8);
      delta[i] += shuffle_xor(delta[i], 16);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = p[m][n][2 * half];
        const float high = p[m][n][2 * half + 1];
        p_words[m][n][half] = pack<T>(low, high);
        ds_words[m][n][half] = pack<T>(low * (ds[m][n][2 * half] - delta[0]),
                                       high * (ds[m][n][2 * half + 1] - delta[1]));
      }
    }
  }
  {
    float dv[kTiles][kHeadDim / 8][4] = {};
    multiply_packed<T, kHeadDim, kTiles, kColumns>(dv, p_words, dout, lane);
    store_rows<T, kHeadDim, kTiles>(call.dv, item, dv, 1.0F, keys, lane);
  }
  {
    float dk[kTiles][kHeadDim / 8][4] = {};
    multiply_packed<T, kHeadDim, kTiles, kColumns>(dk, ds_words, q, lane);
    store_rows<T, kHeadDim, kTiles>(call.dk, item, dk, shape.scale, keys, lane);
  }
  // The 8 x 8 tile (keys 2 m + half, queries n) of dS^T is tile (n, 2 m + half) of dS.
  uint32_t rows[kTiles][kColumns][2];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[n / 2][2 * m + half][n % 2] = transpose_tile(ds_words[m][n][half]);
      }
    }
  }
  float dq[kTiles][kHeadDim / 8][4] = {};
  multiply_packed<T, kHeadDim, kTiles, kColumns>(dq, rows, k, lane);
  store_rows<T, kHeadDim, kTiles>(call.dq, item, dq, shape.scale, queries, lane);
}

/// Launches kernel<T, kHeadDim, kTiles> with num_matrices of a sequence in shared memory.
template <typename Call, typename Kernel>
cudaError_t launch_short_kernel(const Call& call, Kernel kernel, int shared_bytes,
                                cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t blocks = ceil_div(call.shape.batch * call.shape.heads, kShortWarps);
  kernel<<<static_cast<unsigned>(blocks), 32 * kShortWarps, shared_bytes, stream>>>(call);
  return cudaGetLastError();
}

template <int kHeadDim, int kTiles>
constexpr int short_shared_bytes(int num_matrices) {
  return kShortWarps * num_matrices * ShortTraits<kHeadDim, kTiles>::kMatrixBytes;
}

/// function(std::integral_constant<int, tiles>) for the sequences at hand.
template <int kHeadDim, typename Function>
cudaError_t with_short_tiles(const AttentionShape& shape, const Function& function) {
  if (std::max(shape.query_length, shape.key_length) <= 16) {
    return function(std::integral_constant<int, 1>());
  }
  if constexpr (kMostShortTiles<kHeadDim> == 2) {
    return function(std::integral_constant<int, 2>());
  }
  return cudaErrorNotSupported;
}

template <int kHeadDim>
bool short_supported(const AttentionShape& shape, const Gpu& gpu) {
  return shape.has_equal_keys() &&
         std::max(shape.query_length, shape.key_length) <= 16 * kMostShortTiles<kHeadDim> &&
         short_shared_bytes<kHeadDim, kMostShortTiles<kHeadDim>>(4) <= gpu.shared_bytes;
}

template <int kHeadDim>
cudaError_t launch_short_forward(const AttentionForward& call, cudaStream_t stream) {
  return with_short_tiles<kHeadDim>(call.shape, [&](auto tiles) {
    constexpr int kBytes = short_shared_bytes<kHeadDim, tiles()>(3);
    return call.shape.type == DType::kBF16
               ? launch_short_kernel(call, short_forward_kernel<Bf16, kHeadDim, tiles()>, kBytes,
                                     stream)
               : launch_short_kernel(call, short_forward_kernel<F16, kHeadDim, tiles()>, kBytes,
                                     stream);
  });
}

template <int kHeadDim>
cudaError_t launch_short_backward(const AttentionBackward& call, cudaStream_t stream) {
  return with_short_tiles<kHeadDim>(call.shape, [&](auto tiles) {
    constexpr int kBytes = short_shared_bytes<kHeadDim, tiles()>(4);
    return call.shape.type == DType::kBF16
               ? launch_short_kernel(call, short_backward_kernel<Bf16, kHeadDim, tiles()>, kBytes,
                                     stream)
               : launch_short_kernel(call, short_backward_kernel<F16, kHeadDim, tiles()>, kBytes,
                                     stream);
  });
}

}  // namespace kinora::kernels::cuda::attention
