// g = u sigmoid(u (a + b u^2)) and du = dg g'(u), see kernels/activation.h; both functions are one
// code with other constants. Two layouts:
//  - Outputs that lie as u does: a block takes 2048 vectors of 8 elements in a row, a thread 4 of
//    them, all loaded before the first is used.
//  - With a transposed copy or a bias gradient: a block walks down a strip of 64 columns, a tile of
//    128 rows at a time. It loads the next tile before it computes one (but in fp32, for want of
//    registers). A thread takes 4 rows of 8 columns, adds up its columns in registers, and turns
//    the quantised 4 x 4 corners into words of a column, which meet in shared memory so that a
//    column of a tile leaves as 128 bytes. The strips' sums are written per block and added by a
//    second kernel (column_sums.cu), in an order that the sizes alone decide.
// Exponentials of the 16-bit types are the hardware's (2 ulp of fp32), fp32's are the library's.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/fp8_tile.cuh"
#include "kinora/kernels/elements.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;   // elements of a vector
constexpr int kUnroll = 4;  // vectors, or rows, of a thread
constexpr int kTileColumns = 64;
constexpr int kTileRows = 128;
constexpr int64_t kTargetBlocks = 2048;
constexpr int64_t kMostTiles = 4;  // of a block, of large matrices: fewer, and loads wait for loads
constexpr int64_t kMostGridRows = 65'535;

/// s(u) = u (linear + cubic u^2).
struct Coefficients {
  float linear;
  float cubic;
};

/// What both directions share. `out` is g or du; dg and partial are null forward.
struct Call {
  int64_t rows;
  int64_t width;
  Coefficients coefficients;
  const void* u;
  const void* dg;
  void* out;
  Fp8Output out_fp8;
  float* partial;  // [blocks of rows, width]
  bool aligned;    // all vectors of 8 elements are vectors of memory
};

Coefficients coefficients_of(Activation function) {
  constexpr float kLinear = 1.5957691216057308F;  // 2 sqrt(2 / pi)
  return function == Activation::kGeluTanh ? Coefficients{kLinear, kLinear * 0.044715F}
                                           : Coefficients{1.0F, 0.0F};
}

template <typename T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0F / (1.0F + expf(-x));
  } else {
    float power;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634F));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + power));
    return result;
  }
}

/// The bound of u^2 keeps 0 times infinity away; fminf would drop a NaN here, but u has it, too.
template <typename T>
__device__ __forceinline__ float activate(Coefficients c, float u) {
  const float square = fminf(u * u, 1e30F);
  return u * sigmoid<T>(u * (c.linear + c.cubic * square));
}

/// f'(u).
template <typename T>
__device__ __forceinline__ float derivative(Coefficients c, float u) {
  const float square = fminf(u * u, 1e30F);
  const float s = sigmoid<T>(u * (c.linear + c.cubic * square));
  return s + u * s * (1.0F - s) * (c.linear + 3.0F * c.cubic * square);
}

/// The quantisation of the output, as registers of a thread.
struct Quantiser {
  float scale;
  uint32_t magnitude = 0;

  __device__ explicit Quantiser(const Fp8Output& output)
      : scale(output.scale == nullptr ? 1.0F : *output.scale) {}

  __device__ uint2 operator()(const float (&values)[kWidth], bool e5m2) {
#pragma unroll
    for (const float value : values) {
      magnitude = larger_magnitude(magnitude, value);
    }
    return quantise8(values, scale, e5m2);
  }
};

__device__ __forceinline__ void store_bytes(void* data, int64_t first, int count, bool whole,
                                            uint2 bytes) {
  auto* target = static_cast<uint8_t*>(data) + first;
  if (whole) {
    *reinterpret_cast<uint2*>(target) = bytes;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < count) {
        target[i] = static_cast<uint8_t>((i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4)));
      }
    }
  }
}

/// One vector through the function: g or du as fp32, stored where it is wanted.
template <typename T, bool kBackward>
__device__ __forceinline__ void apply(const Call& call, int64_t first, int count, bool whole,
                                      const Packed<T, kWidth>& packed_u,
                                      const Packed<T, kWidth>& packed_dg, float (&out)[kWidth]) {
  float u[kWidth];
  unpack<T, kWidth>(packed_u, u);
  if constexpr (kBackward) {
    unpack<T, kWidth>(packed_dg, out);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kBackward) {
      out[i] *= derivative<T>(call.coefficients, u[i]);
    } else {
      out[i] = activate<T>(call.coefficients, u[i]);
    }
  }
  if (call.out != nullptr) {
    store_floats<T, kWidth>(call.out, first, count, whole, out);
  }
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kThreads) flat_kernel(const Call call) {
  const int64_t total = call.rows * call.width;
  const int64_t start =
      (static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x) * kWidth;
  Packed<T, kWidth> u[kUnroll];
  Packed<T, kWidth> dg[kBackward ? kUnroll : 1];
  constexpr int64_t kBlock = int64_t{kThreads} * kUnroll * kWidth;
  if (call.aligned && (blockIdx.x + int64_t{1}) * kBlock <= total) {  // no branch between loads
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t first = start + int64_t{i} * kThreads * kWidth;
      u[i] = load_packed<T, kWidth>(call.u, first);
      if constexpr (kBackward) {
        dg[i] = load_packed<T, kWidth>(call.dg, first);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t first = start + int64_t{i} * kThreads * kWidth;
      const int count = static_cast<int>(min(max(total - first, int64_t{0}), int64_t{kWidth}));
      const bool whole = call.aligned && count == kWidth;
      u[i] = load_some<T, kWidth>(call.u, first, count, whole);
      if constexpr (kBackward) {
        dg[i] = load_some<T, kWidth>(call.dg, first, count, whole);
      }
    }
  }
  const bool quantises = is_wanted(call.out_fp8);
  const bool e5m2 = call.out_fp8.type == DType::kF8E5M2;
  Quantiser quantise(call.out_fp8);
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t first = start + int64_t{i} * kThreads * kWidth;
    const int count = static_cast<int>(min(max(total - first, int64_t{0}), int64_t{kWidth}));
    const bool whole = call.aligned && count == kWidth;
    float out[kWidth];
    apply<T, kBackward>(call, first, count, whole, u[i], dg[kBackward ? i : 0], out);
    if (quantises) {
      const uint2 bytes = quantise(out, e5m2);
      if (call.out_fp8.data != nullptr) {
        store_bytes(call.out_fp8.data, first, count, whole, bytes);
      }
    }
  }
  if (quantises && call.out_fp8.amax != nullptr) {
    record_warp_amax(call.out_fp8.amax, quantise.magnitude);
  }
}

/// A tile of bytes by columns: a column is 32 words (128 rows) in 8 quads. Quad q of column c lies
/// at q ^ (c / 8), so that neither the writes (8 columns apart at a time) nor the reads (a column
/// at a time) of a warp meet in a bank.
struct ByteTile {
  uint32_t word[kTileColumns * kTileRows / 4];
};

/// Four rows of 8 columns: column group 0..7, row group 0..31.
__device__ __forceinline__ void put(ByteTile* tile, int column_group, int row_group,
                                    const uint2 (&bytes)[kUnroll]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t columns[4];
    if (half == 0) {
      transpose4x4(bytes[0].x, bytes[1].x, bytes[2].x, bytes[3].x, columns);
    } else {
      transpose4x4(bytes[0].y, bytes[1].y, bytes[2].y, bytes[3].y, columns);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = column_group * kWidth + half * 4 + c;
      tile->word[column * (kTileRows / 4) + (row_group ^ (4 * column_group))] = columns[c];
    }
  }
}

__device__ __forceinline__ void store_transposed(const ByteTile& tile, void* transposed,
                                                 int64_t rows, int64_t width, int64_t first_row,
                                                 int64_t first_column) {
  constexpr int kQuads = kTileRows / 16;
  const int64_t pitch = transposed_pitch(rows);
  const bool aligned = reinterpret_cast<uintptr_t>(transposed) % 16 == 0;
#pragma unroll
  for (int i = threadIdx.x; i < kTileColumns * kQuads; i += kThreads) {
    const int column = i / kQuads;
    const int quad = i % kQuads;
    const int64_t row = first_row + quad * 16;
    if (first_column + column >= width || row >= rows) {
      continue;
    }
    const uint4 bytes =
        reinterpret_cast<const uint4*>(tile.word)[column * kQuads + (quad ^ (column / kWidth))];
    uint8_t* target = static_cast<uint8_t*>(transposed) + (first_column + column) * pitch + row;
    if (aligned) {  // the tile has zeros behind the rows
      *reinterpret_cast<uint4*>(target) = bytes;
    } else {
      const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        if (row + k < pitch) {
          target[k] = static_cast<uint8_t>(words[k / 4] >> (8 * (k % 4)));
        }
      }
    }
  }
}

/// Which 8-bit copies a tile leaves.
enum class Copies : uint8_t { kNone, kE4M3, kE5M2 };

template <typename T, bool kBackward, Copies kCopies>
__global__ void __launch_bounds__(kThreads, kBackward || sizeof(T) == 4 ? 2 : 3)
    tile_kernel(const Call call, int64_t rows_per_block) {
  constexpr bool kAhead = sizeof(T) == 2;
  constexpr bool kQuantises = kCopies != Copies::kNone;
  __shared__ __align__(16) ByteTile tiles[kQuantises ? 2 : 1];  // one fills while one leaves
  __shared__ float sums[kThreads / 32][kTileColumns];
  const int column_group = threadIdx.x % 8;
  const int row_group = threadIdx.x / 8;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int64_t column = first_column + column_group * kWidth;
  const int columns = static_cast<int>(min(max(call.width - column, int64_t{0}), int64_t{kWidth}));
  const bool whole_columns = call.aligned && first_column + kTileColumns <= call.width;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block;
  const int64_t end = min(call.rows, begin + rows_per_block);
  Packed<T, kWidth> next_u[kUnroll];
  Packed<T, kWidth> next_dg[kBackward ? kUnroll : 1];
  const auto load = [&](int64_t tile_row) {
    const int64_t row = tile_row + row_group * kUnroll;
    if (whole_columns && tile_row + kTileRows <= end) {  // no branch between loads
#pragma unroll
      for (int r = 0; r < kUnroll; ++r) {
        const int64_t first = (row + r) * call.width + column;
        next_u[r] = load_packed<T, kWidth>(call.u, first);
        if constexpr (kBackward) {
          next_dg[r] = load_packed<T, kWidth>(call.dg, first);
        }
      }
    } else {
#pragma unroll
      for (int r = 0; r < kUnroll; ++r) {
        const int64_t first = (row + r) * call.width + column;
        const int count = row + r < end ? columns : 0;
        const bool whole = call.aligned && count == kWidth;
        next_u[r] = load_some<T, kWidth>(call.u, first, count, whole);
        if constexpr (kBackward) {
          next_dg[r] = load_some<T, kWidth>(call.dg, first, count, whole);
        }
      }
    }
  };
  if constexpr (kAhead) {
    load(begin);
  }
  Quantiser quantise(call.out_fp8);
  float sum[kWidth] = {};
  int turn = 0;
  for (int64_t tile_row = begin; tile_row < end; tile_row += kTileRows) {
    if constexpr (!kAhead) {
      load(tile_row);
    }
    Packed<T, kWidth> u[kUnroll];
    Packed<T, kWidth> dg[kBackward ? kUnroll : 1];
#pragma unroll
    for (int r = 0; r < kUnroll; ++r) {
      u[r] = next_u[r];
      if constexpr (kBackward) {
        dg[r] = next_dg[r];
      }
    }
    if (kAhead && tile_row + kTileRows < end) {
      load(tile_row + kTileRows);
    }
    const int64_t row = tile_row + row_group * kUnroll;
    const bool whole_tile = whole_columns && tile_row + kTileRows <= end;
    uint2 bytes[kUnroll];
#pragma unroll
    for (int r = 0; r < kUnroll; ++r) {
      const int64_t first = (row + r) * call.width + column;
      const int count = whole_tile ? kWidth : (row + r < end ? columns : 0);
      const bool whole = whole_tile || (call.aligned && count == kWidth);
      float out[kWidth];
      apply<T, kBackward>(call, first, count, whole, u[r], dg[kBackward ? r : 0], out);
      if constexpr (kBackward) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          sum[c] += out[c];
        }
      }
      if constexpr (kQuantises) {
        bytes[r] = quantise(out, kCopies == Copies::kE5M2);
        if (call.out_fp8.data != nullptr) {
          store_bytes(call.out_fp8.data, first, count, whole, bytes[r]);
        }
      }
    }
    if (kQuantises && call.out_fp8.transposed != nullptr) {  // the same for the whole block
      put(&tiles[turn], column_group, row_group, bytes);
      __syncthreads();
      store_transposed(tiles[turn], call.out_fp8.transposed, call.rows, call.width, tile_row,
                       first_column);
      turn ^= 1;
    }
  }
  if (kQuantises && call.out_fp8.amax != nullptr) {
    record_warp_amax(call.out_fp8.amax, quantise.magnitude);
  }
  if (kBackward && call.partial != nullptr) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {  // over the four row groups of the warp
      sum[c] += __shfl_xor_sync(0xffffffffU, sum[c], 8);
      sum[c] += __shfl_xor_sync(0xffffffffU, sum[c], 16);
      if (threadIdx.x % 32 < 8) {
        sums[warp][column_group * kWidth + c] = sum[c];
      }
    }
    __syncthreads();
    if (threadIdx.x < kTileColumns && first_column + threadIdx.x < call.width) {
      float total = 0.0F;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) {
        total += sums[w][threadIdx.x];
      }
      call.partial[blockIdx.y * call.width + first_column + threadIdx.x] = total;
    }
  }
}

int64_t rows_per_block(int64_t rows, int64_t width) {
  const int64_t row_tiles = ceil_div(rows, kTileRows);
  const int64_t tiles = row_tiles * ceil_div(width, kTileColumns);
  return std::max(std::clamp(ceil_div(tiles, kTargetBlocks), int64_t{1}, kMostTiles),
                  ceil_div(row_tiles, kMostGridRows)) *
         kTileRows;
}

template <bool kBackward>
cudaError_t launch(Call call, DType type, cudaStream_t stream) {
  call.aligned = call.width % kWidth == 0 && is_aligned_to<16>(call.u) &&
                 is_aligned_to<16>(call.dg) && is_aligned_to<16>(call.out) &&
                 is_aligned_to<8>(call.out_fp8.data);
  return with_type(type, [&](auto example) {
    using T = decltype(example);
    if (call.partial == nullptr && call.out_fp8.transposed == nullptr) {
      const int64_t blocks = ceil_div(call.rows * call.width, int64_t{kThreads} * kUnroll * kWidth);
      flat_kernel<T, kBackward><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(call);
      return cudaGetLastError();
    }
    const int64_t per_block = rows_per_block(call.rows, call.width);
    const dim3 grid(static_cast<unsigned>(ceil_div(call.width, kTileColumns)),
                    static_cast<unsigned>(ceil_div(call.rows, per_block)));
    if (call.out_fp8.type == DType::kF8E5M2) {
      tile_kernel<T, kBackward, Copies::kE5M2><<<grid, kThreads, 0, stream>>>(call, per_block);
    } else if (!kBackward || is_wanted(call.out_fp8)) {
      tile_kernel<T, kBackward, Copies::kE4M3><<<grid, kThreads, 0, stream>>>(call, per_block);
    } else {
      tile_kernel<T, true, Copies::kNone><<<grid, kThreads, 0, stream>>>(call, per_block);
    }
    return cudaGetLastError();
  });
}

/// A thread takes a vector of a row, and of every row that is a multiple of the grid's further.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gated_activation_kernel(const GatedActivation call, Coefficients coefficients, bool aligned) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  const auto count = static_cast<int>(min(call.width - column, int64_t{kWidth}));
  if (count <= 0) {
    return;
  }
  for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
    const int64_t first = 2 * row * call.width + column;
    float u[kWidth];
    float v[kWidth];
    load_floats<T, kWidth>(call.uv, first, count, aligned, u);
    load_floats<T, kWidth>(call.uv, first + call.width, count, aligned, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      u[i] = activate<T>(coefficients, u[i]) * v[i];
    }
    store_floats<T, kWidth>(call.g, row * call.g_stride + column, count, aligned, u);
  }
}

}  // namespace

cudaError_t gated_activation(const GatedActivation& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool aligned = call.width % kWidth == 0 && call.g_stride % kWidth == 0 &&
                       is_aligned_to<16>(call.uv) && is_aligned_to<16>(call.g);
  const dim3 grid(static_cast<unsigned>(ceil_div(call.width, int64_t{kThreads} * kWidth)),
                  static_cast<unsigned>(std::min(call.rows, kMostGridRows)));
  return with_type(call.type, [&](auto example) {
    gated_activation_kernel<decltype(example)>
        <<<grid, kThreads, 0, stream>>>(call, coefficients_of(call.function), aligned);
    return cudaGetLastError();
  });
}

cudaError_t activation_forward(const ActivationForward& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  return launch<false>({call.rows, call.width, coefficients_of(call.function), call.u, nullptr,
                        call.g, call.g_fp8, nullptr, false},
                       call.type, stream);
}

size_t activation_backward_workspace_bytes(int64_t rows, int64_t width, bool bias_grad) {
  if (!bias_grad || rows == 0 || width == 0) {
    return 0;
  }
  return static_cast<size_t>(ceil_div(rows, rows_per_block(rows, width)) * width) * sizeof(float);
}

cudaError_t activation_backward(const ActivationBackward& call, void* workspace,
                                cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  auto* partial = call.bias_grad == nullptr ? nullptr : static_cast<float*>(workspace);
  const cudaError_t error = launch<true>({call.rows, call.width, coefficients_of(call.function),
                                          call.u, call.dg, call.du, call.du_fp8, partial, false},
                                         call.type, stream);
  if (error != cudaSuccess || partial == nullptr) {
    return error;
  }
  return add_partial_sums(partial, ceil_div(call.rows, rows_per_block(call.rows, call.width)),
                          call.width, call.bias_grad, stream);
}

}  // namespace kinora::kernels::cuda
