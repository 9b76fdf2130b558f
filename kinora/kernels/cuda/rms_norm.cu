// RMSNorm and its gradients, see kernels/rms_norm.h. A row is read once and stays in registers: of
// a warp up to a width of 1,280 (no barrier; up to five vectors of 8 elements a lane in flight),
// else of a block of 256 threads up to 8,192. Backward, a block takes a range of rows, so that a
// thread sees the same columns again and adds up their dweight in registers; the blocks' sums go to
// the workspace, and column_sums.cu's second kernel adds them. The next row is on its way
// meanwhile, and both sums over a row are taken at once. The ranges depend on the sizes alone.
// Bound by memory: bf16 moves 4 bytes an element forward, 6 backward.
//
// Wider rows: an element at a time, read twice.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/modulated_norm.cuh"
#include "kinora/kernels/cuda/rms_norm.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kTargetBlocks = 1024;  // enough for every GPU, whatever its size
constexpr int64_t kMaxWarpWidth = int64_t{5} * 32 * kChunk;
constexpr int64_t kMaxWidth = int64_t{4} * kThreads * kChunk;

/// Rows of a block, backward: a multiple of those that it has at a time.
int64_t rows_per_block(int64_t rows, int64_t width) {
  const int64_t at_once = width <= kMaxWarpWidth ? kWarps : 1;
  // Each block leaves a row of sums: fewer of wide ones.
  const int64_t blocks = width <= kMaxWarpWidth ? kTargetBlocks : kTargetBlocks / 2;
  return ceil_div(ceil_div(rows, blocks), at_once) * at_once;
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

/// The sums of two values over a row's threads, in all of them. Rows that follow each other take
/// turns with the buffers: between the last read of one and its next write lies the other's
/// barrier.
template <int kRowThreads>
__device__ __forceinline__ float2 row_sums(float2 values, float2* scratch) {
  values = make_float2(warp_sum(values.x), warp_sum(values.y));
  if constexpr (kRowThreads > 32) {
    if (threadIdx.x % 32 == 0) {
      scratch[threadIdx.x / 32] = values;
    }
    __syncthreads();
    values = make_float2(0.0F, 0.0F);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      values.x += scratch[warp].x;
      values.y += scratch[warp].y;
    }
  }
  return values;
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

/// The pairs of a chunk of columns from `first` on, turned by their angles, or (kBack) back.
/// aligned: angles of four pairs lie together, for vectors of memory.
template <bool kBack>
__device__ __forceinline__ void turn(const RowRotation& rotation, int64_t row, int64_t first,
                                     int count, bool aligned, float (&x)[kChunk]) {
  if (rotation.cosine == nullptr) {
    return;
  }
  float cosines[kChunk / 2] = {};
  float sines[kChunk / 2] = {};
  if (aligned) {
    const int64_t place = rotation.place(row, first);
    load_floats<float, kChunk / 2>(rotation.cosine, place, kChunk / 2, true, cosines);
    load_floats<float, kChunk / 2>(rotation.sine, place, kChunk / 2, true, sines);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      if (2 * i + 1 < count) {
        const int64_t place = rotation.place(row, first + 2 * i);
        cosines[i] = rotation.cosine[place];
        sines[i] = rotation.sine[place];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float sine = kBack ? -sines[i] : sines[i];
    const float turned = x[2 * i] * cosines[i] - x[2 * i + 1] * sine;
    x[2 * i + 1] = x[2 * i] * sine + x[2 * i + 1] * cosines[i];
    x[2 * i] = turned;
  }
}

/// Whether turn() may be told that angles are aligned.
bool is_aligned_rotation(const RowRotation& rotation) {
  return rotation.num_angles % (kChunk / 2) == 0 && is_aligned_to<16>(rotation.cosine) &&
         is_aligned_to<16>(rotation.sine);
}

__device__ __forceinline__ float rstd_of(float squares, int64_t width, float epsilon) {
  return rsqrtf(squares / static_cast<float>(width) + epsilon);
}

/// T: of x;  Y: of y.
template <typename T, typename Y, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const RmsNormForward call, bool aligned, bool weight_aligned,
                   bool angles_aligned) {
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
    turn<false>(call.rotation, row, columns.first(v), columns.count(v),
                angles_aligned && columns.count(v) == kChunk, x);
    store_floats<Y, kChunk>(call.y, row * call.y_stride + columns.first(v), columns.count(v),
                            columns.whole(v), x);
  }
}

/// Blocks of a multiprocessor that the registers must do for, backward: with few columns a thread
/// it takes several to have enough loads in flight.
template <int kVectors>
inline constexpr int kMinBlocks = kVectors == 1 ? 3 : 1;

template <typename T, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, kMinBlocks<kVectors>)
    backward_kernel(const RmsNormBackward call, int64_t rows_per_block, bool aligned,
                    bool weight_aligned, bool angles_aligned, float* __restrict__ partial) {
  constexpr int kRows = kThreads / kRowThreads;  // at a time
  __shared__ float2 scratch[2][kWarps];
  const Columns<T, kRowThreads, kVectors> columns = {call.width, aligned};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = min(call.rows, begin + rows_per_block);
  float weight[kVectors][kChunk];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    columns.load_weight(call.weight, weight_aligned, v, weight[v]);
  }
  float dweight[kVectors][kChunk] = {};
  Packed<T, kChunk> next_dy[kVectors];
  Packed<T, kChunk> next_x[kVectors];
  const auto prefetch = [&](int64_t row) {
    if (row < end) {
      columns.load(call.dy, row * call.dy_stride, next_dy);
      columns.load(call.x, row * call.x_stride, next_x);
    }
  };
  const int64_t first = begin + threadIdx.x / kRowThreads;
  prefetch(first);
  int buffer = 0;
  for (int64_t row = first; row < end; row += kRows) {
    Packed<T, kChunk> packed_x[kVectors];
    float dy[kVectors][kChunk];
    float2 sums = make_float2(0.0F, 0.0F);  // of x^2, and of g * x
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      packed_x[v] = next_x[v];
      float x[kChunk];
      unpack<T, kChunk>(packed_x[v], x);
      unpack<T, kChunk>(next_dy[v], dy[v]);
      turn<true>(call.rotation, row, columns.first(v), columns.count(v),
                 angles_aligned && columns.count(v) == kChunk, dy[v]);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        sums.x += x[k] * x[k];
        sums.y += dy[v][k] * weight[v][k] * x[k];
      }
    }
    prefetch(row + kRows);
    sums = row_sums<kRowThreads>(sums, scratch[buffer]);
    buffer ^= 1;
    const float rstd = rstd_of(sums.x, call.width, call.epsilon);
    const float mean = rstd * sums.y / static_cast<float>(call.width);  // of g * xhat
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float x[kChunk];
      unpack<T, kChunk>(packed_x[v], x);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        const float xhat = x[k] * rstd;
        dweight[v][k] += dy[v][k] * xhat;
        dy[v][k] = rstd * (dy[v][k] * weight[v][k] - xhat * mean);
      }
      store_floats<T, kChunk>(call.dx, row * call.dx_stride + columns.first(v), columns.count(v),
                              columns.whole(v), dy[v]);
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

/// Column c of a row, turned by its angle, or (kBack) back. at(c): the row before that.
template <bool kBack, typename At>
__device__ __forceinline__ float turned_element(const RowRotation& rotation, int64_t row, int64_t c,
                                                const At& at) {
  if (rotation.cosine == nullptr) {
    return at(c);
  }
  const int64_t place = rotation.place(row, c / 2 * 2);
  const float sine = kBack ? -rotation.sine[place] : rotation.sine[place];
  return c % 2 == 0 ? at(c) * rotation.cosine[place] - at(c + 1) * sine
                    : at(c - 1) * sine + at(c) * rotation.cosine[place];
}

/// Element c of a row's dy, turned back.
template <typename T>
__device__ __forceinline__ float wide_dy(const RmsNormBackward& call, int64_t row, int64_t c) {
  return turned_element<true>(call.rotation, row, c, [&](int64_t column) {
    return element<T>(call.dy, row * call.dy_stride + column);
  });
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

/// The elements of pairs are one thread's, since y may be x.
template <typename T, typename Y>
__global__ void __launch_bounds__(kThreads) wide_forward_kernel(const RmsNormForward call) {
  __shared__ float scratch[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t x = row * call.x_stride;
  const int64_t y = row * call.y_stride;
  const float rstd = wide_rstd<T>(call.x, x, call.width, call.epsilon, scratch);
  for (int64_t c = 2 * threadIdx.x; c < call.width; c += 2 * kThreads) {
    const float first = element<T>(call.x, x + c) * (rstd * weight_at(call.weight, c));
    const bool has_second = c + 1 < call.width;
    const float second =
        has_second ? element<T>(call.x, x + c + 1) * (rstd * weight_at(call.weight, c + 1)) : 0.0F;
    const auto at = [&](int64_t column) { return column == c ? first : second; };
    static_cast<Y*>(call.y)[y + c] =
        from_float<Y>(turned_element<false>(call.rotation, row, c, at));
    if (has_second) {
      static_cast<Y*>(call.y)[y + c + 1] =
          from_float<Y>(turned_element<false>(call.rotation, row, c + 1, at));
    }
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

/// As wide_forward_kernel.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    wide_backward_kernel(const RmsNormBackward call, const float* __restrict__ rstds) {
  __shared__ float scratch[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t first_x = row * call.x_stride;
  const int64_t first_dx = row * call.dx_stride;
  const float rstd = rstds[row];
  float sum = 0.0F;
  for (int64_t c = threadIdx.x; c < call.width; c += kThreads) {
    sum += wide_dy<T>(call, row, c) * (element<T>(call.x, first_x + c) * rstd) *
           weight_at(call.weight, c);
  }
  const float mean = block_sum(sum, scratch) / static_cast<float>(call.width);
  for (int64_t c = 2 * threadIdx.x; c < call.width; c += 2 * kThreads) {
    const int count = c + 1 < call.width ? 2 : 1;
    float dx[2];
    for (int i = 0; i < count; ++i) {
      const float g = wide_dy<T>(call, row, c + i) * weight_at(call.weight, c + i);
      const float xhat = element<T>(call.x, first_x + c + i) * rstd;
      dx[i] = rstd * (g - xhat * mean);
    }
    for (int i = 0; i < count; ++i) {
      static_cast<T*>(call.dx)[first_dx + c + i] = from_float<T>(dx[i]);
    }
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
    sum += wide_dy<T>(call, row, column) *
           (element<T>(call.x, row * call.x_stride + column) * rstds[row]);
  }
  partial[static_cast<int64_t>(blockIdx.y) * call.width + column] = sum;
}

/// body(kRowThreads, kVectors as types) for a width up to kMaxWidth.
template <typename Body>
void with_columns(int64_t width, const Body& body) {
  if (width <= 32 * kChunk) {
    body(std::integral_constant<int, 32>{}, std::integral_constant<int, 1>{});
  } else if (width <= kMaxWarpWidth) {
    body(std::integral_constant<int, 32>{}, std::integral_constant<int, 5>{});
  } else if (width <= int64_t{kThreads} * kChunk) {
    body(std::integral_constant<int, kThreads>{}, std::integral_constant<int, 1>{});
  } else if (width <= int64_t{2} * kThreads * kChunk) {
    body(std::integral_constant<int, kThreads>{}, std::integral_constant<int, 2>{});
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
    forward_kernel<T, Y, row_threads(), vectors()><<<blocks, kThreads, 0, stream>>>(
        call, aligned, is_aligned_to<16>(call.weight), is_aligned_rotation(call.rotation));
  });
  return cudaGetLastError();
}

bool is_valid(const RowRotation& rotation, int64_t width) {
  return rotation.cosine == nullptr ||
         (width % 2 == 0 && rotation.num_positions > 0 && rotation.num_angles > 0);
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
  if (!is_valid(call.rotation, call.width)) {
    return cudaErrorInvalidValue;
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
  const int64_t partial = dweight ? ceil_div(rows, rows_per_block(rows, width)) * width : 0;
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
  if (!is_valid(call.rotation, call.width)) {
    return cudaErrorInvalidValue;
  }
  auto* rstd = static_cast<float*>(workspace);  // of wide rows
  float* partial =
      call.dweight == nullptr ? nullptr : rstd + (call.width > kMaxWidth ? call.rows : 0);
  const int64_t per_block = rows_per_block(call.rows, call.width);
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
          call, per_block, aligned, is_aligned_to<16>(call.weight),
          is_aligned_rotation(call.rotation), partial);
    });
    return cudaGetLastError();
  });
  if (error != cudaSuccess || partial == nullptr) {
    return error;
  }
  return add_partial_sums(partial, blocks, call.width, call.dweight, stream);
}

}  // namespace kinora::kernels::cuda
