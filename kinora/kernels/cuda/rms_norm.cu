// RMSNorm and its gradients, see kernels/rms_norm.h. A row is read once and stays in registers: of
// a warp up to a width of 1,280 (no barrier; up to five vectors of 8 elements a lane in flight),
// else of a block of 256 threads up to 8,192. Backward, a block takes a range of rows, so that a
// thread sees the same columns again and adds up their dweight in registers; the blocks' sums go to
// the workspace, and column_sums.cu's second kernel adds them. The ranges depend on the sizes
// alone. Bound by memory: bf16 moves 4 bytes an element forward, 6 backward.
//
// Wider rows: an element at a time, read twice.
#include <algorithm>

#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/modulated_norm.cuh"
#include "kinora/kernels/cuda/rms_norm.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kTargetBlocks = 1024;  // enough for every GPU, whatever its size
constexpr int64_t kMaxWidth = int64_t{4} * kThreads * kChunk;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Rows of a block, backward: a multiple of the warps.
int64_t rows_per_block(int64_t rows) {
  return ceil_div(std::max(ceil_div(rows, kTargetBlocks), int64_t{1}), kWarps) * kWarps;
}

/// The columns of one thread: vectors at a distance of kRowThreads of them.
template <typename T, int kRowThreads, int kVectors>
struct Columns {
  int64_t width;
  bool aligned;

  __device__ __forceinline__ int64_t first(int v) const {
    return (static_cast<int64_t>(v) * kRowThreads + threadIdx.x % kRowThreads) * kChunk;
  }
  __device__ __forceinline__ int count(int v) const {
    return static_cast<int>(min(max(width - first(v), int64_t{0}), int64_t{kChunk}));
  }
  __device__ __forceinline__ bool whole(int v) const { return aligned && count(v) == kChunk; }

  /// Of the row that begins at element `start`.
  __device__ __forceinline__ void load(const void* data, int64_t start,
                                       Packed<T, kChunk> (&packed)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      packed[v] = load_some<T, kChunk>(data, start + first(v), count(v), whole(v));
    }
  }
  __device__ __forceinline__ void load_weight(const float* weight, bool weight_aligned, int v,
                                              float (&values)[kChunk]) const {
#pragma unroll
    for (float& value : values) {
      value = 1.0F;
    }
    if (weight != nullptr) {
      load_floats<float, kChunk>(weight, first(v), count(v), weight_aligned && count(v) == kChunk,
                                 values);
    }
  }
};

/// The sum over a row's threads, in all of them.
template <int kRowThreads>
__device__ __forceinline__ float row_sum(float value, float* scratch) {
  if constexpr (kRowThreads == 32) {
    return warp_sum(value);
  } else {
    return block_sum(value, scratch);
  }
}

/// The sum of the squares of one thread's columns.
template <typename T, int kVectors>
__device__ __forceinline__ float sum_of_squares(const Packed<T, kChunk> (&packed)[kVectors]) {
  float squares = 0.0F;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float x[kChunk];
    unpack<T, kChunk>(packed[v], x);
#pragma unroll
    for (const float value : x) {
      squares += value * value;
    }
  }
  return squares;
}

__device__ __forceinline__ float rstd_of(float squares, int64_t width, float epsilon) {
  return rsqrtf(squares / static_cast<float>(width) + epsilon);
}

/// T: of x;  Y: of y.
template <typename T, typename Y, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const RmsNormForward call, bool aligned, bool weight_aligned) {
  __shared__ float scratch[kWarps];
  const Columns<T, kRowThreads, kVectors> columns = {call.width, aligned};
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  if (row >= call.rows) {
    return;  // all threads of the row
  }
  Packed<T, kChunk> packed[kVectors];
  columns.load(call.x, row * call.x_stride, packed);
  const float squares = row_sum<kRowThreads>(sum_of_squares<T, kVectors>(packed), scratch);
  const float rstd = rstd_of(squares, call.width, call.epsilon);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float x[kChunk];
    float weight[kChunk];
    unpack<T, kChunk>(packed[v], x);
    columns.load_weight(call.weight, weight_aligned, v, weight);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      x[k] *= rstd * weight[k];
    }
    store_floats<Y, kChunk>(call.y, row * call.y_stride + columns.first(v), columns.count(v),
                            columns.whole(v), x);
  }
}

template <typename T, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const RmsNormBackward call, int64_t rows_per_block, bool aligned,
                    bool weight_aligned, float* __restrict__ partial) {
  constexpr int kRows = kThreads / kRowThreads;  // at a time
  __shared__ float scratch[kWarps];
  const Columns<T, kRowThreads, kVectors> columns = {call.width, aligned};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = min(call.rows, begin + rows_per_block);
  float dweight[kVectors][kChunk] = {};
  for (int64_t row = begin + threadIdx.x / kRowThreads; row < end; row += kRows) {
    Packed<T, kChunk> packed_dy[kVectors];
    Packed<T, kChunk> packed_x[kVectors];
    columns.load(call.dy, row * call.dy_stride, packed_dy);
    columns.load(call.x, row * call.x_stride, packed_x);
    const float squares = row_sum<kRowThreads>(sum_of_squares<T, kVectors>(packed_x), scratch);
    const float rstd = rstd_of(squares, call.width, call.epsilon);
    float sum = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float dy[kChunk];
      float x[kChunk];
      float weight[kChunk];
      unpack<T, kChunk>(packed_dy[v], dy);
      unpack<T, kChunk>(packed_x[v], x);
      columns.load_weight(call.weight, weight_aligned, v, weight);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        const float product = dy[k] * (x[k] * rstd);
        dweight[v][k] += product;
        sum += product * weight[k];
      }
    }
    const float mean = row_sum<kRowThreads>(sum, scratch) / static_cast<float>(call.width);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float dy[kChunk];
      float x[kChunk];
      float weight[kChunk];
      unpack<T, kChunk>(packed_dy[v], dy);
      unpack<T, kChunk>(packed_x[v], x);
      columns.load_weight(call.weight, weight_aligned, v, weight);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        dy[k] = rstd * (dy[k] * weight[k] - x[k] * rstd * mean);
      }
      store_floats<T, kChunk>(call.dx, row * call.dx_stride + columns.first(v), columns.count(v),
                              columns.whole(v), dy);
    }
  }
  if (partial == nullptr) {
    return;
  }
  float* target = partial + static_cast<int64_t>(blockIdx.x) * call.width;
  if constexpr (kRowThreads == 32) {  // the warps one after the other
    __shared__ float sums[32 * kVectors * kChunk];
    for (int warp = 0; warp < kWarps; ++warp) {
      if (static_cast<int>(threadIdx.x) / 32 == warp) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int k = 0; k < kChunk; ++k) {
            float& sum = sums[columns.first(v) + k];
            sum = warp == 0 ? dweight[v][k] : sum + dweight[v][k];
          }
        }
      }
      __syncthreads();
    }
    for (int64_t c = threadIdx.x; c < call.width; c += kThreads) {
      target[c] = sums[c];
    }
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        if (k < columns.count(v)) {
          target[columns.first(v) + k] = dweight[v][k];
        }
      }
    }
  }
}

// --- Wider rows ----------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ float element(const void* data, int64_t index) {
  return to_float(static_cast<const T*>(data)[index]);
}

__device__ __forceinline__ float weight_at(const float* weight, int64_t column) {
  return weight == nullptr ? 1.0F : weight[column];
}

/// Of the row that begins at element `first`, in all threads of the block.
template <typename T>
__device__ __forceinline__ float wide_rstd(const void* x, int64_t first, int64_t width,
                                           float epsilon, float* scratch) {
  float squares = 0.0F;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float value = element<T>(x, first + c);
    squares += value * value;
  }
  return rstd_of(block_sum(squares, scratch), width, epsilon);
}

template <typename T, typename Y>
__global__ void __launch_bounds__(kThreads) wide_forward_kernel(const RmsNormForward call) {
  __shared__ float scratch[kWarps];
  const int64_t x = static_cast<int64_t>(blockIdx.x) * call.x_stride;
  const int64_t y = static_cast<int64_t>(blockIdx.x) * call.y_stride;
  const float rstd = wide_rstd<T>(call.x, x, call.width, call.epsilon, scratch);
  for (int64_t c = threadIdx.x; c < call.width; c += kThreads) {
    static_cast<Y*>(call.y)[y + c] =
        from_float<Y>(element<T>(call.x, x + c) * (rstd * weight_at(call.weight, c)));
  }
}

/// rstd: [rows].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    wide_rstd_kernel(const RmsNormBackward call, float* __restrict__ rstd) {
  __shared__ float scratch[kWarps];
  const int64_t x = static_cast<int64_t>(blockIdx.x) * call.x_stride;
  const float value = wide_rstd<T>(call.x, x, call.width, call.epsilon, scratch);
  if (threadIdx.x == 0) {
    rstd[blockIdx.x] = value;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    wide_backward_kernel(const RmsNormBackward call, const float* __restrict__ rstds) {
  __shared__ float scratch[kWarps];
  const int64_t first_dy = static_cast<int64_t>(blockIdx.x) * call.dy_stride;
  const int64_t first_x = static_cast<int64_t>(blockIdx.x) * call.x_stride;
  const int64_t first_dx = static_cast<int64_t>(blockIdx.x) * call.dx_stride;
  const float rstd = rstds[blockIdx.x];
  float sum = 0.0F;
  for (int64_t c = threadIdx.x; c < call.width; c += kThreads) {
    sum += element<T>(call.dy, first_dy + c) * (element<T>(call.x, first_x + c) * rstd) *
           weight_at(call.weight, c);
  }
  const float mean = block_sum(sum, scratch) / static_cast<float>(call.width);
  for (int64_t c = threadIdx.x; c < call.width; c += kThreads) {
    const float g = element<T>(call.dy, first_dy + c) * weight_at(call.weight, c);
    const float xhat = element<T>(call.x, first_x + c) * rstd;
    static_cast<T*>(call.dx)[first_dx + c] = from_float<T>(rstd * (g - xhat * mean));
  }
}

/// partial[blockIdx.y, column]: a thread a column.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    wide_dweight_kernel(const RmsNormBackward call, const float* __restrict__ rstds,
                        int64_t rows_per_block, float* __restrict__ partial) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= call.width) {
    return;
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block;
  const int64_t end = min(call.rows, begin + rows_per_block);
  float sum = 0.0F;
  for (int64_t row = begin; row < end; ++row) {
    sum += element<T>(call.dy, row * call.dy_stride + column) *
           (element<T>(call.x, row * call.x_stride + column) * rstds[row]);
  }
  partial[static_cast<int64_t>(blockIdx.y) * call.width + column] = sum;
}

/// body(kRowThreads, kVectors as types) for a width up to kMaxWidth.
template <typename Body>
void with_columns(int64_t width, const Body& body) {
  if (width <= 32 * kChunk) {
    body(std::integral_constant<int, 32>{}, std::integral_constant<int, 1>{});
  } else if (width <= 5 * 32 * kChunk) {
    body(std::integral_constant<int, 32>{}, std::integral_constant<int, 5>{});
  } else {
    body(std::integral_constant<int, kThreads>{}, std::integral_constant<int, 4>{});
  }
}

template <typename T, typename Y>
cudaError_t launch_forward(const RmsNormForward& call, cudaStream_t stream) {
  if (call.width > kMaxWidth) {
    wide_forward_kernel<T, Y><<<static_cast<unsigned>(call.rows), kThreads, 0, stream>>>(call);
    return cudaGetLastError();
  }
  const bool aligned = call.width % kChunk == 0 && call.x_stride % kChunk == 0 &&
                       call.y_stride % kChunk == 0 && is_aligned_to<16>(call.x) &&
                       is_aligned_to<16>(call.y);
  with_columns(call.width, [&](auto row_threads, auto vectors) {
    constexpr int kRows = kThreads / row_threads();
    const auto blocks = static_cast<unsigned>(ceil_div(call.rows, kRows));
    forward_kernel<T, Y, row_threads(), vectors()>
        <<<blocks, kThreads, 0, stream>>>(call, aligned, is_aligned_to<16>(call.weight));
  });
  return cudaGetLastError();
}

int64_t stride_or(int64_t stride, int64_t width) {
  return stride == 0 ? width : stride;
}

/// partial: as backward_kernel's; rstd: [rows].
template <typename T>
void launch_wide_backward(const RmsNormBackward& call, int64_t per_block, unsigned blocks,
                          float* partial, float* rstd, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(call.rows);
  wide_rstd_kernel<T><<<rows, kThreads, 0, stream>>>(call, rstd);
  if (partial != nullptr) {  // before dx may replace what it reads
    const dim3 grid(static_cast<unsigned>(ceil_div(call.width, kThreads)), blocks);
    wide_dweight_kernel<T><<<grid, kThreads, 0, stream>>>(call, rstd, per_block, partial);
  }
  wide_backward_kernel<T><<<rows, kThreads, 0, stream>>>(call, rstd);
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormForward& given, cudaStream_t stream) {
  RmsNormForward call = given;
  call.x_stride = stride_or(call.x_stride, call.width);
  call.y_stride = stride_or(call.y_stride, call.width);
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  return with_type(call.y_type.value_or(call.type), [&](auto example) {
    using Y = decltype(example);
    return call.type == DType::kF32 ? launch_forward<float, Y>(call, stream)
                                    : launch_forward<Y, Y>(call, stream);
  });
}

size_t rms_norm_backward_workspace_bytes(int64_t rows, int64_t width, bool dweight) {
  if (rows == 0 || width == 0) {
    return 0;
  }
  const int64_t partial = dweight ? ceil_div(rows, rows_per_block(rows)) * width : 0;
  return static_cast<size_t>((width > kMaxWidth ? rows : 0) + partial) * sizeof(float);
}

cudaError_t rms_norm_backward(const RmsNormBackward& given, void* workspace, cudaStream_t stream) {
  RmsNormBackward call = given;
  call.dy_stride = stride_or(call.dy_stride, call.width);
  call.x_stride = stride_or(call.x_stride, call.width);
  call.dx_stride = stride_or(call.dx_stride, call.width);
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  auto* rstd = static_cast<float*>(workspace);  // of wide rows
  float* partial =
      call.dweight == nullptr ? nullptr : rstd + (call.width > kMaxWidth ? call.rows : 0);
  const int64_t per_block = rows_per_block(call.rows);
  const auto blocks = static_cast<unsigned>(ceil_div(call.rows, per_block));
  const cudaError_t error = with_type(call.type, [&](auto example) {
    using T = decltype(example);
    if (call.width > kMaxWidth) {
      launch_wide_backward<T>(call, per_block, blocks, partial, rstd, stream);
      return cudaGetLastError();
    }
    const bool aligned = call.width % kChunk == 0 && call.dy_stride % kChunk == 0 &&
                         call.x_stride % kChunk == 0 && call.dx_stride % kChunk == 0 &&
                         is_aligned_to<16>(call.dy) && is_aligned_to<16>(call.x) &&
                         is_aligned_to<16>(call.dx);
    with_columns(call.width, [&](auto row_threads, auto vectors) {
      backward_kernel<T, row_threads(), vectors()><<<blocks, kThreads, 0, stream>>>(
          call, per_block, aligned, is_aligned_to<16>(call.weight), partial);
    });
    return cudaGetLastError();
  });
  if (error != cudaSuccess || partial == nullptr) {
    return error;
  }
  return add_partial_sums(partial, blocks, call.width, call.dweight, stream);
}

}  // namespace kinora::kernels::cuda
