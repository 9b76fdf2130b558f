// QK-norm and rotary embedding of packed rows in one pass, see kernels/qk_norm_rotary.h. A lane has
// four pairs of a head (two groups of four neighbours, so that both elements of every pair are its
// own), a head D / 8 lanes, a warp as many heads of one row as fit beside each other (D = 72: three
// in 27 lanes) and walks over the row's heads, several of them loaded at once. Where a row has
// fewer than are loaded at once, the heads of several rows are. Weights of a lane's pairs are the
// same for all heads and read once, angles once a row, or with every head of several rows. Queries
// and keys (and values, where they are copied) are parts of the grid.
//
// Heads of 64, 72 and 128 elements, whose number of lanes the compiler knows, take the fewest
// instructions: sums of several heads go side by side, and memory is read 16 bytes a lane.
//
// Backward, a warp walks over rows, too, with the sums of dweight of its elements in registers; the
// block's warps and heads meet in shared memory in a fixed order, and column_sums.cu's second
// kernel adds up the blocks. How rows are cut depends on their number alone. The next heads are
// loaded while the present ones are computed.
//
// Bound by memory: bf16 moves 4 bytes an element of q and k forward, 6 backward.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/head_pairs.cuh"
#include "kinora/kernels/cuda/qk_norm_rotary.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMaxHeadDim = 32 * 2 * kPairs;
constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kTargetBlocks = 1024;  // enough for every GPU, whatever its size

// Groups of heads loaded at once: with kLanes so many that few are empty of 16 or 24 heads.
__host__ __device__ constexpr int forward_unroll(size_t element_bytes, int lanes) {
  return lanes == 8 || lanes == 9 ? 3 : element_bytes == 2 ? 4 : 2;
}
constexpr int kBackwardUnroll = 2;

/// Rows of a block, backward: a multiple of what its warps load at once.
int64_t rows_per_block(int64_t rows, int64_t rows_at_once = 1) {
  const int64_t multiple = kWarps * rows_at_once;
  return ceil_div(std::max(ceil_div(rows, kTargetBlocks), int64_t{1}), multiple) * multiple;
}

/// Where row `row` begins on the far side of attention.
__device__ __forceinline__ int64_t far_row(const QkNormRotary& rule, uint32_t row, int64_t stride,
                                           int64_t sample_stride) {
  if (rule.rows_per_sample == 0) {
    return row * stride;
  }
  const auto rows = static_cast<uint32_t>(rule.rows_per_sample);
  return row / rows * sample_stride + row % rows * stride;
}

/// The heads of some rows, one behind the other.
template <bool kSeveralRows>
struct HeadsOfRows {
  uint32_t first_row;
  int heads;  // of a row
  int count;  // of all rows

  __device__ __forceinline__ HeadsOfRows(const QkNormRotary& rule, uint32_t first_row,
                                         int64_t num_rows)
      : first_row(first_row),
        heads(static_cast<int>(rule.heads)),
        count(static_cast<int>(num_rows) * heads) {}
  [[nodiscard]] __device__ __forceinline__ uint32_t row(int number) const {
    return kSeveralRows ? first_row + static_cast<unsigned>(min(number, count - 1)) /
                                          static_cast<unsigned>(heads)
                        : first_row;
  }
  [[nodiscard]] __device__ __forceinline__ int head(int number) const {
    return kSeveralRows
               ? static_cast<int>(static_cast<unsigned>(number) % static_cast<unsigned>(heads))
               : number;
  }
};

/// kCentres: the norm is LayerNorm.
template <typename T, bool kInterleaved, bool kCentres, bool kSeveralRows, int kLanes>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const QkNormRotaryForward call, int rows_at_once, bool aligned) {
  constexpr int kUnroll = forward_unroll(sizeof(T), kLanes);
  const QkNormRotary& rule = call.rule;
  const uint32_t first_row =
      (blockIdx.x * kWarps + threadIdx.x / 32) * static_cast<unsigned>(rows_at_once);
  if (first_row >= rule.rows) {
    return;  // the whole warp
  }
  const HeadsOfRows<kSeveralRows> heads(
      rule, first_row, min(static_cast<int64_t>(rows_at_once), rule.rows - first_row));
  const int half = kLanes > 0 ? kLanes * kPairs : static_cast<int>(rule.head_dim / 2);
  const int head_dim = 2 * half;
  const Lane<kInterleaved, kLanes> lane(rule.head_dim, aligned);
  const int64_t part = blockIdx.y * rule.heads * rule.head_dim;
  const T* in = static_cast<const T*>(call.in) + part;
  T* out = static_cast<T*>(call.out) + part;
  const bool is_value = blockIdx.y == 2;
  const Pairs weight = load_dims(lane, blockIdx.y == 0 ? rule.q_weight : rule.k_weight,
                                 rule.weight_type, half, 1.0F);
  const Pairs bias =
      load_dims(lane, blockIdx.y == 0 ? rule.q_bias : rule.k_bias, rule.weight_type, half, 0.0F);
  const bool turns = rule.cosine != nullptr && !is_value;
  const bool normalises = rule.normalise && !is_value;
  const float inverse_dim = 1.0F / static_cast<float>(rule.head_dim);
  Pairs angle = load_angles(lane, rule, first_row, half);

  for (int begin = 0; begin < heads.count; begin += kUnroll * lane.heads) {
    PackedPairs<T> packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int number = begin + i * lane.heads + lane.head;
      packed[i] = load_pairs<T>(
          lane, in + heads.row(number) * call.in_stride + heads.head(number) * head_dim, half,
          number < heads.count && lane.count > 0);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (kLanes == 0 && begin + i * lane.heads >= heads.count) {
        break;  // for all lanes
      }
      const int number = begin + i * lane.heads + lane.head;
      const uint32_t row = heads.row(number);
      if constexpr (kSeveralRows) {
        angle = load_angles(lane, rule, row, half);
      }
      Pairs x = unpack_pairs<T, kInterleaved>(packed[i]);
      if (normalises) {
        centre<kCentres>(lane, inverse_dim, x);
        const float rstd = rstd_of(lane, inverse_dim, rule.epsilon, x);
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
      if (number < heads.count && lane.count > 0) {
        store_pairs<T>(lane,
                       out + far_row(rule, row, call.out_stride, call.out_sample_stride) +
                           heads.head(number) * head_dim,
                       half, x);
      }
    }
  }
}

/// partial: [2, blocks, head_dim], queries' and keys' sums, with kCentres [4, ...], those of biases
/// behind them; null: not wanted.
template <typename T, bool kInterleaved, bool kCentres, bool kSeveralRows, int kLanes>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const QkNormRotaryBackward call, int64_t rows_per_block, int rows_at_once,
                    bool aligned, float* __restrict__ partial) {
  constexpr int kUnroll = kBackwardUnroll;
  const QkNormRotary& rule = call.rule;
  const int half = kLanes > 0 ? kLanes * kPairs : static_cast<int>(rule.head_dim / 2);
  const int head_dim = 2 * half;
  const Lane<kInterleaved, kLanes> lane(rule.head_dim, aligned);
  const int64_t part = blockIdx.y * rule.heads * rule.head_dim;
  const T* dout = static_cast<const T*>(call.dout) + part;
  const T* in = static_cast<const T*>(call.in) + part;
  T* din = static_cast<T*>(call.din) + part;
  const Pairs weight = load_dims(lane, blockIdx.y == 0 ? rule.q_weight : rule.k_weight,
                                 rule.weight_type, half, 1.0F);
  const bool is_value = blockIdx.y == 2;
  const bool turns = rule.cosine != nullptr && !is_value;
  const bool normalises = rule.normalise && !is_value;
  const float inverse_dim = 1.0F / static_cast<float>(rule.head_dim);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end_row = min(rule.rows, first_row + rows_per_block);
  Pairs dweight = {};
  Pairs dbias = {};

  for (int64_t begin_row = first_row + threadIdx.x / 32 * rows_at_once; begin_row < end_row;
       begin_row += kWarps * rows_at_once) {
    const HeadsOfRows<kSeveralRows> heads(
        rule, static_cast<uint32_t>(begin_row),
        min(static_cast<int64_t>(rows_at_once), end_row - begin_row));
    Pairs angle = load_angles(lane, rule, heads.first_row, half);
    struct Loaded {
      PackedPairs<T> dy[kUnroll];
      PackedPairs<T> x[kUnroll];
    };
    const auto load = [&](int begin) {
      Loaded loaded;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int number = begin + i * lane.heads + lane.head;
        const bool wanted = number < heads.count && lane.count > 0;
        const uint32_t row = heads.row(number);
        const int64_t head = heads.head(number) * head_dim;
        loaded.dy[i] = load_pairs<T>(
            lane, dout + far_row(rule, row, call.dout_stride, call.dout_sample_stride) + head, half,
            wanted);
        loaded.x[i] =
            load_pairs<T>(lane, in + row * call.in_stride + head, half, wanted && normalises);
      }
      return loaded;
    };
    Loaded next = load(0);
    for (int begin = 0; begin < heads.count; begin += kUnroll * lane.heads) {
      const Loaded loaded = next;
      if (begin + kUnroll * lane.heads < heads.count) {
        next = load(begin + kUnroll * lane.heads);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (kLanes == 0 && begin + i * lane.heads >= heads.count) {
          break;  // for all lanes
        }
        const int number = begin + i * lane.heads + lane.head;
        const bool is_there = number < heads.count && lane.count > 0;
        const uint32_t row = heads.row(number);
        if constexpr (kSeveralRows) {
          angle = load_angles(lane, rule, row, half);
        }
        Pairs g = unpack_pairs<T, kInterleaved>(loaded.dy[i]);
        if (turns) {  // back
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            const float turned = g.a[j] * angle.a[j] + g.b[j] * angle.b[j];
            g.b[j] = g.b[j] * angle.a[j] - g.a[j] * angle.b[j];
            g.a[j] = turned;
          }
        }
        if (normalises) {
          Pairs x = unpack_pairs<T, kInterleaved>(loaded.x[i]);
          centre<kCentres>(lane, inverse_dim, x);
          // All sums of the head at once.
          float squares = 0.0F;
          float sum = 0.0F;
          float product = 0.0F;
          Pairs weighted;
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            weighted.a[j] = g.a[j] * weight.a[j];
            weighted.b[j] = g.b[j] * weight.b[j];
            squares += x.a[j] * x.a[j] + x.b[j] * x.b[j];
            product += weighted.a[j] * x.a[j] + weighted.b[j] * x.b[j];
            sum += weighted.a[j] + weighted.b[j];
          }
          squares = lane.sum(squares);
          product = lane.sum(product);
          const float mean = kCentres ? lane.sum(sum) * inverse_dim : 0.0F;
          // Where no head is, an epsilon of zero would make NaN of 0 * rstd.
          const float rstd = is_there ? rsqrtf(squares * inverse_dim + rule.epsilon) : 0.0F;
          const float along = rstd * rstd * product * inverse_dim;
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            dweight.a[j] += g.a[j] * (x.a[j] * rstd);
            dweight.b[j] += g.b[j] * (x.b[j] * rstd);
            if constexpr (kCentres) {
              dbias.a[j] += g.a[j];
              dbias.b[j] += g.b[j];
            }
            g.a[j] = rstd * (weighted.a[j] - mean - x.a[j] * along);
            g.b[j] = rstd * (weighted.b[j] - mean - x.b[j] * along);
          }
        }
        if (is_there) {
          store_pairs<T>(lane, din + row * call.din_stride + heads.head(number) * head_dim, half,
                         g);
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
  return rule.head_dim > 0 && rule.head_dim % 2 == 0 && rule.head_dim <= kMaxHeadDim &&
         rule.rows < kMaxRows && rule.num_positions < kMaxRows;
}

/// Rows whose heads are loaded at once: 1 unless several rows' fit into what a warp loads.
int rows_at_once(const QkNormRotary& rule, int unroll) {
  const int64_t lanes = ceil_div(rule.head_dim / 2, kPairs);
  return static_cast<int>(std::max(unroll * (32 / lanes) / rule.heads, int64_t{1}));
}

/// Whether groups of 16 bytes, and of four angles, are vectors of memory.
bool is_aligned(const QkNormRotary& rule, const void* data, int64_t stride,
                int64_t sample_stride = 0) {
  constexpr size_t kVector = 16;
  const auto elements = static_cast<int64_t>(kVector / size_of(rule.type));
  return rule.head_dim % 8 == 0 && stride % elements == 0 && sample_stride % elements == 0 &&
         is_aligned_to<kVector>(data) && is_aligned_to<kVector>(rule.cosine) &&
         is_aligned_to<kVector>(rule.sine);
}

/// body(a type that says whether it is true)
template <typename Body>
void with_truth(bool is_true, const Body& body) {
  if (is_true) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

/// body(T{}, whether pairs are interleaved, whether the norm centres, whether the heads of several
/// rows are loaded at once, Lane's kLanes), all but the first as types.
template <typename Body>
cudaError_t with_kind(const QkNormRotary& rule, bool several_rows, bool aligned, const Body& body) {
  return with_type(rule.type, [&](auto example) {
    with_truth(rule.pairs == RotaryPairs::kInterleaved, [&](auto interleaved) {
      with_truth(rule.normalise && rule.q_bias != nullptr, [&](auto centres) {
        const std::integral_constant<int, 0> any;
        if (several_rows) {
          return body(example, interleaved, centres, std::true_type{}, any);
        }
        if constexpr (sizeof(example) == 2) {
          switch (aligned ? rule.head_dim : 0) {
            case 64:
              return body(example, interleaved, centres, std::false_type{},
                          std::integral_constant<int, 8>{});
            case 72:
              return body(example, interleaved, centres, std::false_type{},
                          std::integral_constant<int, 9>{});
            case 128:
              return body(example, interleaved, centres, std::false_type{},
                          std::integral_constant<int, 16>{});
            default:
              break;
          }
        }
        body(example, interleaved, centres, std::false_type{}, any);
      });
    });
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
  const int at_once = rows_at_once(rule, forward_unroll(size_of(rule.type), 0));
  const dim3 grid(static_cast<unsigned>(ceil_div(rule.rows, kWarps * at_once)), parts(rule));
  return with_kind(rule, at_once > 1, aligned,
                   [&](auto example, auto interleaved, auto centres, auto several, auto lanes) {
                     forward_kernel<decltype(example), interleaved(), centres(), several(), lanes()>
                         <<<grid, kThreads, 0, stream>>>(call, at_once, aligned);
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
  const int at_once = rows_at_once(rule, kBackwardUnroll);
  const int64_t per_block = rows_per_block(rule.rows, at_once);
  const int64_t blocks = ceil_div(rule.rows, per_block);
  const dim3 grid(static_cast<unsigned>(blocks), parts(rule));
  cudaError_t error =
      with_kind(rule, at_once > 1, aligned,
                [&](auto example, auto interleaved, auto centres, auto several, auto lanes) {
                  backward_kernel<decltype(example), interleaved(), centres(), several(), lanes()>
                      <<<grid, kThreads, 0, stream>>>(call, per_block, at_once, aligned, partial);
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
