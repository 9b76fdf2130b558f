// Attention of texts of different lengths, see kernels/ragged_attention.h.
//
// A block takes up to 128 queries of a text and head, 32 a warp, and goes over the text's keys in
// tiles of 64, two of which are in shared memory: the next one arrives (cp.async) while one is
// computed. A warp works on 32 keys at once: S by mma.sync, the bias of the block's distances out
// of shared memory, softmax, and O += P V with P in registers. The maximum is raised as in
// attention_forward.cuh. Blocks behind the end of a text return at once.
//
// Speed: texts of 5 to 300 tokens are a small part of an encoder's work (T5-XXL: 1 % of its
// operations), so mma.sync is enough.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_tile.cuh"
#include "kinora/kernels/cuda/ragged_attention.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::kernels::cuda {
namespace {

using attention::Bf16;
using attention::F16;
using attention::kLog2E;
using attention::kSlack;

constexpr int kHeadDim = 64;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kMTiles = 2;  // of 16 queries, a warp
constexpr int kWarpQueries = 16 * kMTiles;
constexpr int kBlockQueries = kWarps * kWarpQueries;
constexpr int kTileKeys = 64;
constexpr int kStepKeys = 32;
constexpr int kStepTiles = kStepKeys / 8;
constexpr int kStages = 2;
constexpr int64_t kLongest = 8192;

using Row = attention::Row<kHeadDim>;

constexpr int kQueryBytes = kBlockQueries * Row::kPitch;
constexpr int kTileBytes = kTileKeys * Row::kPitch;
constexpr int kBiasAt = kQueryBytes + kStages * 2 * kTileBytes;

/// A warp's output so far.
struct State {
  float out[kMTiles][kHeadDim / 8][4] = {};
  float max[kMTiles][2];  ///< the reference of the exponents, in powers of two
  float sum[kMTiles][2] = {};
};

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

/// Scores in powers of two; keys from `num_keys` on do not count.
/// @param bias  address of the bias of the first key and the warp's first query; 0: none
__device__ __forceinline__ void finish_scores(float (&s)[kMTiles][kStepTiles][4], uint32_t bias,
                                              int num_keys, float scale_log2, int g, int t) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kStepTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = m * 16 + i / 2 * 8 + g;
        const int key = n * 8 + 2 * t + i % 2;
        const float added =
            bias == 0 ? 0.0F : load_shared_float(bias + static_cast<uint32_t>((key - query) * 4));
        s[m][n][i] = key < num_keys ? fmaf(s[m][n][i], scale_log2, added) : -INFINITY;
      }
    }
  }
}

/// Raises the maxima where scores exceed them by more than kSlack, and scales what there is.
__device__ __forceinline__ void raise_maxima(State& state,
                                             const float (&s)[kMTiles][kStepTiles][4]) {
  float local[kMTiles][2];
  bool exceeds = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = s[m][0][2 * half];
#pragma unroll
      for (int n = 0; n < kStepTiles; ++n) {
        highest = fmaxf(highest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      }
      local[m][half] = highest;
      exceeds = exceeds || highest > state.max[m][half] + kSlack;
    }
  }
  if (!attention::any_lane(exceeds)) {
    return;
  }
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = fmaxf(local[m][half], attention::shuffle_xor(local[m][half], 1));
      highest = fmaxf(highest, attention::shuffle_xor(highest, 2));
      highest = fmaxf(highest, state.max[m][half]);
      // A row without a number so far (all NaN) keeps -inf, and has nothing to rescale.
      const float factor =
          highest == -INFINITY ? 1.0F : attention::exp2_approx(state.max[m][half] - highest);
      state.max[m][half] = highest;
      state.sum[m][half] *= factor;
#pragma unroll
      for (int n = 0; n < Row::kChunks; ++n) {
        state.out[m][n][2 * half] *= factor;
        state.out[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

/// Adds kStepKeys keys to the output.
/// @param q, k, v  addresses of the warp's first query and of the first key's rows
template <typename T>
__device__ __forceinline__ void add_keys(State& state, uint32_t q, uint32_t k, uint32_t v,
                                         uint32_t bias, int num_keys, float scale_log2, int lane) {
  float s[kMTiles][kStepTiles][4] = {};
  attention::multiply_rows<T, kHeadDim, kMTiles, kStepTiles>(s, q, k, lane);
  finish_scores(s, bias, num_keys, scale_log2, lane >> 2, lane & 3);
  raise_maxima(state, s);
  uint32_t p[kMTiles][kStepTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kStepTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = attention::exp2_approx(s[m][n][2 * half] - state.max[m][half]);
        const float high = attention::exp2_approx(s[m][n][2 * half + 1] - state.max[m][half]);
        state.sum[m][half] += low + high;
        p[m][n][half] = attention::pack<T>(low, high);
      }
    }
  }
  attention::multiply_packed<T, kHeadDim, kMTiles, kStepTiles>(state.out, p, v, lane);
}

/// @param out  the first row of the warp's queries;  @param num_rows  that are to be written
template <typename T>
__device__ __forceinline__ void store_output(const State& state, uint16_t* out, int64_t stride,
                                             int num_rows, int g, int t) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + g;
      float sum = state.sum[m][half];
      sum += attention::shuffle_xor(sum, 1);
      sum += attention::shuffle_xor(sum, 2);
      const float inverse = 1.0F / sum;
      uint32_t words[Row::kChunks];
#pragma unroll
      for (int c = 0; c < Row::kChunks; ++c) {
        words[c] = attention::pack<T>(state.out[m][c][2 * half] * inverse,
                                      state.out[m][c][2 * half + 1] * inverse);
      }
      attention::store_row(out + (row < num_rows ? row : 0) * stride, row < num_rows, t, words);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 3) ragged_kernel(const RaggedAttention call) {
  const int text = static_cast<int>(blockIdx.x / call.heads);
  const int head = static_cast<int>(blockIdx.x % call.heads);
  const int64_t begin = call.offsets[text];
  const int count = static_cast<int>(call.offsets[text + 1] - begin);
  const int first_query = static_cast<int>(blockIdx.y) * kBlockQueries;
  if (first_query >= count) {
    return;
  }
  const auto rows = [&](const void* data, int64_t stride, int first) {
    return static_cast<const uint16_t*>(data) + (begin + first) * stride + head * kHeadDim;
  };
  const uint32_t queries = attention::shared_base();
  const uint32_t ring = queries + kQueryBytes;
  const uint32_t biases = queries + kBiasAt;
  const int num_tiles = ceil_div(count, kTileKeys);
  const auto start_load = [&](int tile) {
    if (tile < num_tiles) {
      const int first = tile * kTileKeys;
      const uint32_t stage = ring + tile % kStages * 2 * kTileBytes;
      attention::copy_chunks<kHeadDim>(stage, rows(call.k, call.k_stride, first), call.k_stride,
                                       count - first, 0, kTileKeys * Row::kChunks);
      attention::copy_chunks<kHeadDim>(stage + kTileBytes, rows(call.v, call.v_stride, first),
                                       call.v_stride, count - first, 0, kTileKeys * Row::kChunks);
    }
    commit_copies();
  };
  attention::copy_chunks<kHeadDim>(queries, rows(call.q, call.q_stride, first_query), call.q_stride,
                                   count - first_query, 0, kBlockQueries * Row::kChunks);
  start_load(0);
  if (call.bias != nullptr) {
    // Entry i: distance i - (first_query + kBlockQueries - 1).
    const float* table = call.bias + head * (2 * call.reach - 1) + call.reach - 1;
    for (int i = static_cast<int>(threadIdx.x); i < count + kBlockQueries - 1; i += kThreads) {
      const int64_t distance = i - (first_query + kBlockQueries - 1);
      const int64_t nearest = max(distance, 1 - call.reach);  // of rows behind the text's end
      attention::store_shared(biases + i * 4, table[nearest] * kLog2E);
    }
  }

  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kWarpQueries;  // in the block
  const int num_rows = count - first_query - first_row;
  State state;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    state.max[m][0] = -INFINITY;
    state.max[m][1] = -INFINITY;
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    start_load(tile + 1);
    wait_copies<1>();
    __syncthreads();
    if (num_rows > 0) {
      const uint32_t stage = ring + tile % kStages * 2 * kTileBytes;
#pragma unroll 1
      for (int key = 0; key < min(kTileKeys, count - tile * kTileKeys); key += kStepKeys) {
        const int first_key = tile * kTileKeys + key;
        const uint32_t bias =
            call.bias == nullptr
                ? 0
                : biases + static_cast<uint32_t>(first_key - first_row + kBlockQueries - 1) * 4;
        add_keys<T>(state, queries + first_row * Row::kPitch, stage + key * Row::kPitch,
                    stage + kTileBytes + key * Row::kPitch, bias, count - first_key,
                    call.scale * kLog2E, lane);
      }
    }
    __syncthreads();  // the next load may take this stage
  }
  if (num_rows > 0) {
    auto* out = static_cast<uint16_t*>(call.out) +
                (begin + first_query + first_row) * call.out_stride + head * kHeadDim;
    store_output<T>(state, out, call.out_stride, num_rows, lane >> 2, lane & 3);
  }
}

bool is_aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

template <typename T>
cudaError_t launch(const RaggedAttention& call, cudaStream_t stream) {
  // The last step reads the bias of keys behind the text's end, too.
  const auto shared =
      static_cast<int>(kBiasAt + (call.longest + kBlockQueries - 1 + kStepKeys) * sizeof(float));
  const cudaError_t error =
      cudaFuncSetAttribute(ragged_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) {
    return error;
  }
  const dim3 grid(static_cast<unsigned>(call.texts * call.heads),
                  static_cast<unsigned>(ceil_div(call.longest, kBlockQueries)));
  ragged_kernel<T><<<grid, kThreads, static_cast<size_t>(shared), stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

bool ragged_attention_supported(const RaggedAttention& call) {
  // 88 KiB of shared memory at the longest: 7.5 has 64.
  const bool has_type =
      (call.type == DType::kBF16 || call.type == DType::kF16) && kernel_capability() >= 80;
  return has_type && call.head_dim == kHeadDim && call.scale > 0.0F && call.longest <= kLongest;
}

cudaError_t ragged_attention(const RaggedAttention& call, cudaStream_t stream) {
  if (!ragged_attention_supported(call)) {
    return cudaErrorNotSupported;
  }
  if (!is_aligned(call.q, call.q_stride) || !is_aligned(call.k, call.k_stride) ||
      !is_aligned(call.v, call.v_stride) || !is_aligned(call.out, call.out_stride)) {
    return cudaErrorInvalidValue;
  }
  if (call.texts * call.heads == 0) {
    return cudaSuccess;
  }
  return call.type == DType::kBF16 ? launch<Bf16>(call, stream) : launch<F16>(call, stream);
}

}  // namespace kinora::kernels::cuda
