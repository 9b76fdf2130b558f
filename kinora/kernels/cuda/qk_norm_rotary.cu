// QK-norm and rotary embedding of packed rows in one pass, see kernels/qk_norm_rotary.h. A lane has
// four pairs of a head (two groups of four neighbours, so that both elements of every pair are its
// own), a head D / 8 lanes, a warp as many heads of one row as fit beside each other (D = 72: three
// in 27 lanes) and walks over the row's heads, several of them loaded at once. Angles and weights
// of its pairs are the same for all heads: they are read once a row, or once. Queries and keys (and
// values, where they are copied) are parts of the grid.
//
// Backward, a warp walks over rows, too, with the sums of dweight of its elements in registers; the
// block's warps and heads meet in shared memory in a fixed order, and column_sums.cu's second
// kernel adds up the blocks. How rows are cut depends on their number alone.
//
// Bound by memory: bf16 moves 4 bytes an element of q and k forward, 6 backward.
#include <algorithm>

#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/head_pairs.cuh"
#include "kinora/kernels/cuda/qk_norm_rotary.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMaxHeadDim = 32 * 2 * kPairs;
constexpr int64_t kTargetBlocks = 1024;  // enough for every GPU, whatever its size

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Rows of a block, backward: a multiple of the warps.
int64_t rows_per_block(int64_t rows) {
  return ceil_div(std::max(ceil_div(rows, kTargetBlocks), int64_t{1}), kWarps) * kWarps;
}

/// Where row `row` begins on the far side of attention.
__device__ __forceinline__ int64_t far_row(const QkNormRotary& rule, int64_t row, int64_t stride,
                                           int64_t sample_stride) {
  return rule.rows_per_sample == 0
             ? row * stride
             : row / rule.rows_per_sample * sample_stride + row % rule.rows_per_sample * stride;
}

/// kCentres: the norm is LayerNorm.
template <typename T, bool kInterleaved, bool kCentres>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const QkNormRotaryForward call, bool aligned) {
  constexpr int kUnroll = sizeof(T) == 2 ? 4 : 2;  // groups of heads loaded at once
  const QkNormRotary& rule = call.rule;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rule.rows) {
    return;  // the whole warp
  }
  const int half = static_cast<int>(rule.head_dim / 2);
  const int num_heads = static_cast<int>(rule.heads);
  const Lane<kInterleaved> lane(rule.head_dim, aligned);
  const int step = lane.first_step();
  const int64_t part = blockIdx.y * rule.heads * rule.head_dim;
  const T* in = static_cast<const T*>(call.in) + row * call.in_stride + part;
  T* out = static_cast<T*>(call.out) + far_row(rule, row, call.out_stride, call.out_sample_stride) +
           part;
  const bool is_value = blockIdx.y == 2;
  const Pairs weight = load_dims(lane, blockIdx.y == 0 ? rule.q_weight : rule.k_weight, half, 1.0F);
  const Pairs bias = load_dims(lane, blockIdx.y == 0 ? rule.q_bias : rule.k_bias, half, 0.0F);
  const Pairs angle = load_angles(lane, rule, row, half);
  const bool turns = rule.cosine != nullptr && !is_value;
  const bool normalises = rule.normalise && !is_value;
  const float inverse_dim = 1.0F / static_cast<float>(rule.head_dim);

  for (int begin = 0; begin < num_heads; begin += kUnroll * lane.heads) {
    PackedPairs<T> packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int head = begin + i * lane.heads + lane.head;
      packed[i] =
          load_pairs<T>(lane, in + head * rule.head_dim, half, head < num_heads && lane.count > 0);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (begin + i * lane.heads >= num_heads) {
        break;  // for all lanes
      }
      const int head = begin + i * lane.heads + lane.head;
      Pairs x = unpack_pairs<T, kInterleaved>(packed[i]);
      if (normalises) {
        const float rstd = centre<kCentres>(lane, step, inverse_dim, rule.epsilon, x);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          x.a[j] *= rstd * weight.a[j];
          x.b[j] *= rstd * weight.b[j];
          if constexpr (kCentres) {
            x.a[j] += bias.a[j];
            x.b[j] += bias.b[j];
          }
        }
      }
      if (turns) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const float turned = x.a[j] * angle.a[j] - x.b[j] * angle.b[j];
          x.b[j] = x.a[j] * angle.b[j] + x.b[j] * angle.a[j];
          x.a[j] = turned;
        }
      }
      if (head < num_heads && lane.count > 0) {
        store_pairs<T>(lane, out + head * rule.head_dim, half, x);
      }
    }
  }
}

/// partial: [2, blocks, head_dim], queries' and keys' sums, with kCentres [4, ...], those of biases
/// behind them; null: not wanted.
template <typename T, bool kInterleaved, bool kCentres>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const QkNormRotaryBackward call, int64_t rows_per_block, bool aligned,
                    float* __restrict__ partial) {
  constexpr int kUnroll = 2;
  const QkNormRotary& rule = call.rule;
  const int half = static_cast<int>(rule.head_dim / 2);
  const int num_heads = static_cast<int>(rule.heads);
  const Lane<kInterleaved> lane(rule.head_dim, aligned);
  const int step = lane.first_step();
  const int64_t part = blockIdx.y * rule.heads * rule.head_dim;
  const Pairs weight = load_dims(lane, blockIdx.y == 0 ? rule.q_weight : rule.k_weight, half, 1.0F);
  const bool is_value = blockIdx.y == 2;
  const bool turns = rule.cosine != nullptr && !is_value;
  const bool normalises = rule.normalise && !is_value;
  const float inverse_dim = 1.0F / static_cast<float>(rule.head_dim);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end_row = min(rule.rows, first_row + rows_per_block);
  Pairs dweight = {};
  Pairs dbias = {};

  for (int64_t row = first_row + threadIdx.x / 32; row < end_row; row += kWarps) {
    const T* dout = static_cast<const T*>(call.dout) +
                    far_row(rule, row, call.dout_stride, call.dout_sample_stride) + part;
    const T* in = static_cast<const T*>(call.in) + row * call.in_stride + part;
    T* din = static_cast<T*>(call.din) + row * call.din_stride + part;
    const Pairs angle = load_angles(lane, rule, row, half);
    for (int begin = 0; begin < num_heads; begin += kUnroll * lane.heads) {
      PackedPairs<T> packed_dy[kUnroll];
      PackedPairs<T> packed_x[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int head = begin + i * lane.heads + lane.head;
        const bool wanted = head < num_heads && lane.count > 0;
        packed_dy[i] = load_pairs<T>(lane, dout + head * rule.head_dim, half, wanted);
        packed_x[i] = load_pairs<T>(lane, in + head * rule.head_dim, half, wanted && normalises);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (begin + i * lane.heads >= num_heads) {
          break;  // for all lanes
        }
        const int head = begin + i * lane.heads + lane.head;
        const bool is_there = head < num_heads && lane.count > 0;
        Pairs g = unpack_pairs<T, kInterleaved>(packed_dy[i]);
        if (turns) {  // back
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            const float turned = g.a[j] * angle.a[j] + g.b[j] * angle.b[j];
            g.b[j] = g.b[j] * angle.a[j] - g.a[j] * angle.b[j];
            g.a[j] = turned;
          }
        }
        if (normalises) {
          Pairs x = unpack_pairs<T, kInterleaved>(packed_x[i]);
          const float rstd = centre<kCentres>(lane, step, inverse_dim, rule.epsilon, x);
          float sum = 0.0F;
          float product = 0.0F;
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            x.a[j] *= rstd;
            x.b[j] *= rstd;
            // Where no head is, an epsilon of zero would make NaN of 0 * rstd.
            dweight.a[j] += is_there ? g.a[j] * x.a[j] : 0.0F;
            dweight.b[j] += is_there ? g.b[j] * x.b[j] : 0.0F;
            if constexpr (kCentres) {
              dbias.a[j] += g.a[j];
              dbias.b[j] += g.b[j];
            }
            g.a[j] *= weight.a[j];
            g.b[j] *= weight.b[j];
            sum += g.a[j] + g.b[j];
            product += g.a[j] * x.a[j] + g.b[j] * x.b[j];
          }
          const float mean = kCentres ? lane.sum(sum, step) * inverse_dim : 0.0F;
          const float mean_product = lane.sum(product, step) * inverse_dim;
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            g.a[j] = rstd * (g.a[j] - mean - x.a[j] * mean_product);
            g.b[j] = rstd * (g.b[j] - mean - x.b[j] * mean_product);
          }
        }
        if (is_there) {
          store_pairs<T>(lane, din + head * rule.head_dim, half, g);
        }
      }
    }
  }
  if (partial == nullptr || is_value) {
    return;
  }

  __shared__ float sums[kWarps][2 * kPairs][32];
  const auto put_sums = [&](const Pairs& own, unsigned quantity) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      sums[warp][j][threadIdx.x % 32] = own.a[j];
      sums[warp][kPairs + j][threadIdx.x % 32] = own.b[j];
    }
    __syncthreads();
    const int d = static_cast<int>(threadIdx.x);  // head_dim is at most kThreads
    if (d < rule.head_dim) {
      const int pair = kInterleaved ? d / 2 : d % half;
      const bool is_second = kInterleaved ? d % 2 == 1 : d >= half;
      const int value = pair % kPairs + (is_second ? kPairs : 0);
      float sum = 0.0F;
      for (int w = 0; w < kWarps; ++w) {
        for (int head = 0; head < lane.heads; ++head) {
          sum += sums[w][value][head * lane.lanes + pair / kPairs];
        }
      }
      partial[(static_cast<int64_t>(quantity) * gridDim.x + blockIdx.x) * rule.head_dim + d] = sum;
    }
  };
  put_sums(dweight, blockIdx.y);
  if constexpr (kCentres) {
    __syncthreads();
    put_sums(dbias, 2 + blockIdx.y);
  }
}

unsigned parts(const QkNormRotary& rule) {
  return rule.copies_values ? 3 : 2;
}

bool is_valid(const QkNormRotary& rule) {
  return rule.head_dim > 0 && rule.head_dim % 2 == 0 && rule.head_dim <= kMaxHeadDim;
}

/// Whether groups of four elements are vectors of memory.
bool is_aligned(const QkNormRotary& rule, const void* data, int64_t stride,
                int64_t sample_stride = 0) {
  return rule.head_dim % 8 == 0 && stride % 4 == 0 && sample_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(data) % (4 * size_of(rule.type)) == 0;
}

/// body(T{}, whether pairs are interleaved, whether the norm centres), the latter as types.
template <typename Body>
cudaError_t with_kind(const QkNormRotary& rule, const Body& body) {
  return with_type(rule.type, [&](auto example) {
    const auto with_pairs = [&](auto centres) {
      if (rule.pairs == RotaryPairs::kInterleaved) {
        body(example, std::true_type{}, centres);
      } else {
        body(example, std::false_type{}, centres);
      }
    };
    if (rule.normalise && rule.q_bias != nullptr) {
      with_pairs(std::true_type{});
    } else {
      with_pairs(std::false_type{});
    }
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t qk_norm_rotary_forward(const QkNormRotaryForward& call, cudaStream_t stream) {
  const QkNormRotary& rule = call.rule;
  if (!is_valid(rule)) {
    return cudaErrorInvalidValue;
  }
  if (rule.rows == 0 || rule.heads == 0) {
    return cudaSuccess;
  }
  const bool aligned = is_aligned(rule, call.in, call.in_stride) &&
                       is_aligned(rule, call.out, call.out_stride, call.out_sample_stride);
  const dim3 grid(static_cast<unsigned>(ceil_div(rule.rows, kWarps)), parts(rule));
  return with_kind(rule, [&](auto example, auto interleaved, auto centres) {
    forward_kernel<decltype(example), interleaved(), centres()>
        <<<grid, kThreads, 0, stream>>>(call, aligned);
  });
}

size_t qk_norm_rotary_backward_workspace_bytes(int64_t rows, int64_t head_dim, bool dweight) {
  if (!dweight || rows == 0) {
    return 0;
  }
  return static_cast<size_t>(4 * ceil_div(rows, rows_per_block(rows)) * head_dim) * sizeof(float);
}

cudaError_t qk_norm_rotary_backward(const QkNormRotaryBackward& call, void* workspace,
                                    cudaStream_t stream) {
  const QkNormRotary& rule = call.rule;
  if (!is_valid(rule) || (call.dq_weight != nullptr && call.dk_weight == nullptr) ||
      (call.dq_bias != nullptr && (call.dq_weight == nullptr || call.dk_bias == nullptr))) {
    return cudaErrorInvalidValue;
  }
  if (rule.rows == 0 || rule.heads == 0) {
    return cudaSuccess;
  }
  const bool wants_weights = call.dq_weight != nullptr && rule.normalise;
  auto* partial = wants_weights ? static_cast<float*>(workspace) : nullptr;
  const bool aligned = is_aligned(rule, call.dout, call.dout_stride, call.dout_sample_stride) &&
                       (!rule.normalise || is_aligned(rule, call.in, call.in_stride)) &&
                       is_aligned(rule, call.din, call.din_stride);
  const int64_t per_block = rows_per_block(rule.rows);
  const int64_t blocks = ceil_div(rule.rows, per_block);
  const dim3 grid(static_cast<unsigned>(blocks), parts(rule));
  cudaError_t error = with_kind(rule, [&](auto example, auto interleaved, auto centres) {
    backward_kernel<decltype(example), interleaved(), centres()>
        <<<grid, kThreads, 0, stream>>>(call, per_block, aligned, partial);
  });
  if (error != cudaSuccess || !wants_weights) {
    return error;
  }
  float* const targets[] = {call.dq_weight, call.dk_weight, call.dq_bias, call.dk_bias};
  for (int64_t quantity = 0; quantity < (call.dq_bias != nullptr ? 4 : 2); ++quantity) {
    error = add_partial_sums(partial + quantity * blocks * rule.head_dim, blocks, rule.head_dim,
                             targets[quantity], stream);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace kinora::kernels::cuda
