#pragma once

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_wgmma.cuh"

/// What the backward kernels of all keys (attention_wgmma_backward.cu) and of blocks of keys
/// (attention_blocks_backward.cu) share: statistics of queries, and products of tiles of 64 rows.
namespace kinora::kernels::cuda::attention {

inline constexpr int kStatsThreads = 256;
inline constexpr int kStatsBytes = kTileRows * static_cast<int>(sizeof(float2));

/// Of each query -lse / scale and -delta = -rowsum(dO O): [batch heads][num_tiles 64], zeros at the
/// end. Four lanes a row of a head, rows of all heads one after the other.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kStatsThreads)
    stats_kernel(const __grid_constant__ AttentionBackward call, int num_tiles, float2* all_stats) {
  constexpr int kChunks = kHeadDim / 8;
  const AttentionShape& shape = call.shape;
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kStatsThreads + threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) & 3;
  const int64_t padded = static_cast<int64_t>(num_tiles) * kTileRows;
  const int64_t h = index % shape.heads;
  const int64_t query = index / shape.heads % padded;
  const int64_t b = index / shape.heads / padded;
  if (b >= shape.batch) {
    return;  // whole quads; the shuffles below name their quad alone
  }
  float2 stats = make_float2(0.0F, 0.0F);
  if (query < shape.query_length) {
    const uint16_t* out = row_of(call.out, b, query, h);
    const uint16_t* dout = row_of(call.dout, b, query, h);
    float sum = 0.0F;
#pragma unroll
    for (int c = 0; c < ceil_div(kChunks, 4); ++c) {
      const int chunk = 4 * c + t;
      if (chunk < kChunks) {
        const uint4 x = *reinterpret_cast<const uint4*>(out + chunk * 8);
        const uint4 y = *reinterpret_cast<const uint4*>(dout + chunk * 8);
        const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
        const uint32_t ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 left = unpack<T>(xs[i]);
          const float2 right = unpack<T>(ys[i]);
          sum += left.x * right.x + left.y * right.y;
        }
      }
    }
    const unsigned quad = 0xfU << (threadIdx.x & 28U);
    sum += __shfl_xor_sync(quad, sum, 1);
    sum += __shfl_xor_sync(quad, sum, 2);
    stats = make_float2(-call.lse[(b * shape.heads + h) * shape.query_length + query] / shape.scale,
                        -sum);
  }
  if (t == 0) {
    all_stats[(b * shape.heads + h) * padded + query] = stats;
  }
}

template <typename T, int kHeadDim>
cudaError_t launch_stats(const AttentionBackward& call, int num_tiles, float2* stats,
                         cudaStream_t stream) {
  const int64_t quads = call.shape.batch * call.shape.heads * num_tiles * kTileRows;
  const auto blocks = static_cast<unsigned>(ceil_div(quads * 4, kStatsThreads));
  stats_kernel<T, kHeadDim><<<blocks, kStatsThreads, 0, stream>>>(call, num_tiles, stats);
  return cudaGetLastError();
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Where a thread of the computing warpgroups stands.
struct Place {
  int row;  // of a product of 64 rows; its second one is 8 further
  int t;
};

/// Read anew each time: registers are scarcer than instructions here.
__device__ __forceinline__ Place place() {
  int thread = 0;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return {thread / 32 % 4 * 16 + thread % 32 / 4, thread & 3};
}

/// Once for the warp, whose products have ended.
__device__ __forceinline__ void arrive_warp(uint32_t barrier) {
  __syncwarp();
  if (is_elected()) {
    arrive(barrier);
  }
}

/// acc [64 x 64] += A B^T over head_dim.
/// @param a  A's first row in plane 0, planes of kPlaneA bytes;  @param b  likewise
template <typename T, int kHeadDim, int kPlaneA, int kPlaneB>
__device__ __forceinline__ void multiply_dim(float (&acc)[8][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int step = 0; step < kPlanes<kHeadDim>; ++step) {
    Product<T, 8>::template of_shared<0>(acc, over_dim(a + step * kPlaneA),
                                         over_dim(b + step * kPlaneB), 1);
  }
}

/// acc [64 x head_dim] += A B, A [64 x 64] packed from accumulators.
/// @param b  B's first row in plane 0, planes of kPlane bytes
template <typename T, int kHeadDim, int kPlane>
__device__ __forceinline__ void multiply_tile(float (&acc)[kHeadDim / 8][4],
                                              const uint32_t (&words)[8][2], uint32_t b) {
#pragma unroll
  for (int step = 0; step < kTileRows / 16; ++step) {
    const uint32_t a[4] = {words[2 * step][0], words[2 * step][1], words[2 * step + 1][0],
                           words[2 * step + 1][1]};
    Product<T, kHeadDim / 8>::template of_registers<1>(acc, a, over_rows(b + step * 512, kPlane),
                                                       1);
  }
}

/// What S^T and dP^T begin with: -lse / scale and -delta of their queries.
__device__ __forceinline__ void load_stats(float (&s)[8][4], float (&dp)[8][4], uint32_t stats) {
  stats += 2 * place().t * static_cast<int>(sizeof(float2));
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float4 q = load_shared_float4(stats + n * 8 * static_cast<int>(sizeof(float2)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s[n][2 * half] = q.x;
      s[n][2 * half + 1] = q.z;
      dp[n][2 * half] = q.y;
      dp[n][2 * half + 1] = q.w;
    }
  }
}

#endif

}  // namespace kinora::kernels::cuda::attention
