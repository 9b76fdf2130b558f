// Forward of gate + residual + LayerNorm + modulate (modulated_norm.h; the backward is in
// modulated_norm_backward.cu).
//
//   x_out = x + gate * branch;  h = (x_out - mean) * rstd * (1 + scale) + shift
//
// Bound by memory: bf16 moves 8 bytes an element. A warp takes a row (up to 1,536 columns; four
// warps up to 8,192), keeps it in registers as fp32 and so takes the variance of the differences
// from the mean in a second pass that costs no traffic; the next row's loads are in flight
// meanwhile. A block's rows share their vectors, which are 12 bytes an element: they are put into
// shared memory once a block, as two planes of four columns each (chunk i's first half in one, its
// second in the other), so that a warp's 16-byte reads meet every bank once.
//
// Up to 2,048 rows of a 16-bit type one row's latency is what counts: a kernel that has no
// block-wide step and one round of loads.
//
// Limits of the fast kernels: 16-byte alignment and a width that is a multiple of 8; all else goes
// to a kernel that reads a row three times, one element at a time.
//
// The transposed 8-bit copy leaves through a tile of 32 rows in shared memory where the rows of a
// vector are a multiple of 32 and a warp takes a row; else a second kernel makes it of the first
// copy.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/modulated_norm.cuh"
#include "kinora/kernels/cuda/modulated_norm.h"
#include "kinora/kernels/cuda/modulated_norm_forward.cuh"
#include "kinora/kernels/elements.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int64_t kEnoughBlocks = 2048;  // about eight rounds of blocks on 132 multiprocessors
constexpr int64_t kMaxBlockRows = 16;
constexpr int64_t kFewRows = 1536;  // of an H200: at 2,048 the other kernel is faster
constexpr int kAnyThreads = 256;

/// Any width and alignment: a block a row, three reads of it.
template <typename T>
__global__ void __launch_bounds__(kAnyThreads) forward_any_kernel(const ResidualNormForward call) {
  __shared__ float scratch[kAnyThreads / 32];
  const int64_t width = call.width;
  const bool wants_h8 = call.h_fp8.data != nullptr;
  const bool wants_h = call.h != nullptr || wants_h8 || call.h_fp8.amax != nullptr;
  const int64_t h_stride = call.h_stride > 0 ? call.h_stride : call.width;
  const bool wants_norm =
      call.has_norm && (wants_h || call.mean != nullptr || call.rstd != nullptr);
  const float h8_scale = wants_h8 && call.h_fp8.scale != nullptr ? *call.h_fp8.scale : 1.0F;
  uint32_t magnitude = 0;
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t vector = call.rows_of_vectors.of(row);
    const auto residual = [&](int64_t column) {
      const int64_t i = row * width + column;
      float value = to_float(static_cast<const T*>(call.x)[i]);
      if (call.branch != nullptr) {
        value += vector_element(call.gate, vector, column) *
                 to_float(static_cast<const T*>(call.branch)[i]);
      }
      return value;
    };
    float mean = 0.0F;
    float rstd = 0.0F;
    if (wants_norm) {
      if (call.centres) {
        float sum = 0.0F;
        for (int64_t c = threadIdx.x; c < width; c += kAnyThreads) {
          sum += residual(c);
        }
        mean = block_sum(sum, scratch) / static_cast<float>(width);
      }
      float squares = 0.0F;
      for (int64_t c = threadIdx.x; c < width; c += kAnyThreads) {
        const float difference = residual(c) - mean;
        squares += difference * difference;
      }
      rstd = rsqrtf(block_sum(squares, scratch) / static_cast<float>(width) + call.epsilon);
      if (threadIdx.x == 0) {
        if (call.mean != nullptr) {
          call.mean[row] = mean;
        }
        if (call.rstd != nullptr) {
          call.rstd[row] = rstd;
        }
      }
    }
    for (int64_t c = threadIdx.x; c < width; c += kAnyThreads) {
      const int64_t i = row * width + c;
      const float value = residual(c);
      if (call.x_out != nullptr) {
        static_cast<T*>(call.x_out)[i] = from_float<T>(value);
      }
      if (wants_h) {
        const float h =
            call.has_norm ? (value - mean) * rstd * (1.0F + vector_element(call.scale, vector, c)) +
                                vector_element(call.shift, vector, c)
                          : to_float(from_float<T>(value));
        magnitude = larger_magnitude(magnitude, h);
        if (call.h != nullptr && call.h_type == DType::kF32) {
          static_cast<float*>(call.h)[row * h_stride + c] = h;
        } else if (call.h != nullptr) {
          static_cast<T*>(call.h)[row * h_stride + c] = from_float<T>(h);
        }
        if (wants_h8) {
          static_cast<uint8_t*>(call.h_fp8.data)[i] = static_cast<uint8_t>(
              quantise_word(h, 0.0F, 0.0F, 0.0F, h8_scale, call.h_fp8.type == DType::kF8E5M2));
        }
      }
    }
  }
  if (call.h_fp8.amax != nullptr) {
    record_warp_amax(call.h_fp8.amax, magnitude);
  }
}

bool is_aligned_call(const ResidualNormForward& call) {
  return call.width % kChunk == 0 && is_aligned_to<16>(call.x) && is_aligned_to<16>(call.branch) &&
         is_aligned_to<16>(call.x_out) && is_aligned_to<16>(call.h) &&
         call.h_stride % kChunk == 0 && is_aligned_to<8>(call.h_fp8.data);
}

template <typename T>
cudaError_t launch_any(const ResidualNormForward& call, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 4096;
  forward_any_kernel<T>
      <<<static_cast<unsigned>(std::min(call.rows, kMaxBlocks)), kAnyThreads, 0, stream>>>(call);
  if (call.h_fp8.transposed != nullptr) {
    return transpose_bytes(call.h_fp8.data, call.rows, call.width, call.h_fp8.transposed, stream);
  }
  return cudaGetLastError();
}

/// Blocks of a kernel that this device has at once.
template <typename Kernel>
int64_t blocks_at_once(Kernel kernel, int threads, size_t shared_bytes) {
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes) !=
          cudaSuccess) {
    return 1;
  }
  return std::max(int64_t{1}, static_cast<int64_t>(multiprocessors) * blocks);
}

/// Rows of a block of which a device has so many at once: all take equally many rounds. Each block
/// puts its rows' vectors into shared memory first, which takes as long as a row or two.
int64_t rows_of_rounds(int64_t rows, int64_t blocks) {
  const int64_t rounds = ceil_div(rows, blocks * kMaxBlockRows);
  return ceil_div(rows, blocks * rounds);
}

template <typename T, int kWarpsPerRow, int kChunks, int kFull>
cudaError_t launch_rows(const ResidualNormForward& call, cudaStream_t stream) {
  ForwardPlan plan;
  plan.rows_of_vectors = rows_of_vectors(call);
  const int64_t even_rows = plan.rows_of_vectors.even;
  const int64_t odd_rows = plan.rows_of_vectors.odd;
  const bool wants_vectors = call.has_norm && (call.h != nullptr || is_wanted(call.h_fp8));
  plan.vectors_aligned =
      (call.branch == nullptr || is_aligned_view(call.gate)) &&
      (!wants_vectors || (is_aligned_view(call.scale) && is_aligned_view(call.shift)));
  plan.tile_pitch = 0;
  plan.mean_factor = mean_factor(call);
  if constexpr (kWarpsPerRow == 1 && sizeof(T) == 2) {
    if (call.rows <= kFewRows && plan.vectors_aligned && call.h_fp8.transposed == nullptr) {
      const auto blocks = static_cast<unsigned>(ceil_div(call.rows, kDirectRows));
      forward_direct_kernel<T, kChunks, kFull><<<blocks, kDirectRows * 32, 0, stream>>>(
          call, static_cast<uint32_t>(even_rows), static_cast<uint32_t>(odd_rows),
          plan.mean_factor);
      return cudaGetLastError();
    }
  }

  int64_t groups = 1;
  int64_t rows_per_block = 1;
  if (kWarpsPerRow == 1) {
    // As many rows a block as leave enough blocks; few rows: small blocks, to reach every
    // multiprocessor.
    groups = std::min<int64_t>(call.rows >= kMaxWarps * 128 ? kMaxWarps : 4, even_rows);
    rows_per_block = groups;
    while (rows_per_block < kMaxBlockRows && call.rows / (2 * rows_per_block) >= kEnoughBlocks) {
      rows_per_block *= 2;
    }
  }
  const size_t plane_bytes = static_cast<size_t>(call.width) * 3 * sizeof(float);
  const size_t max_bytes = max_shared_bytes();
  if (call.h_fp8.transposed != nullptr && kWarpsPerRow == 1 &&
      (even_rows == call.rows || (even_rows % kTileRows == 0 && odd_rows % kTileRows == 0))) {
    const int pitch = tile_pitch(static_cast<int>(call.width));
    if (plane_bytes + static_cast<size_t>(kTileRows * pitch) <= max_bytes) {
      plan.tile_pitch = pitch;
      rows_per_block = kTileRows;
      groups = std::min<int64_t>(kMaxWarps, even_rows);
    }
  }
  const size_t shared_bytes = plane_bytes + static_cast<size_t>(kTileRows * plan.tile_pitch);
  if (shared_bytes > max_bytes) {
    return launch_any<T>(call, stream);
  }
  const auto kernel = forward_kernel<T, kWarpsPerRow, kChunks, kFull>;
  constexpr size_t kFreeBytes = 47 * 1024;  // what a kernel may have unasked, less its static part
  if (shared_bytes > kFreeBytes) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) {
      return error;
    }
  }
  if constexpr (kWarpsPerRow > 1) {
    rows_per_block =
        rows_of_rounds(call.rows, blocks_at_once(kernel, kWarpsPerRow * 32, shared_bytes));
  }
  plan.rows_per_block = static_cast<int>(std::min(rows_per_block, even_rows));
  const auto blocks_of = [&plan](int64_t rows) { return ceil_div(rows, plan.rows_per_block); };
  plan.even_blocks = blocks_of(even_rows);
  plan.blocks_per_pair = plan.even_blocks + blocks_of(odd_rows);
  const int64_t vectors = plan.rows_of_vectors.count(call.rows);
  const int64_t blocks = vectors / 2 * plan.blocks_per_pair + vectors % 2 * plan.even_blocks;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(groups * kWarpsPerRow * 32),
           shared_bytes, stream>>>(call, plan);
  if (call.h_fp8.transposed != nullptr && plan.tile_pitch == 0) {
    return transpose_bytes(call.h_fp8.data, call.rows, call.width, call.h_fp8.transposed, stream);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_forward(const ResidualNormForward& call, cudaStream_t stream) {
  const int64_t chunks = ceil_div(call.width, kChunk);
  if (!is_aligned_call(call) || chunks > 8 * 128) {
    return launch_any<T>(call, stream);
  }
  if constexpr (sizeof(T) == 2) {
    if (chunks <= 2 * 32) {
      return launch_rows<T, 1, 2, 0>(call, stream);
    }
    if (chunks <= 3 * 32) {
      return launch_rows<T, 1, 3, 2>(call, stream);
    }
    if (chunks <= 5 * 32) {
      return launch_rows<T, 1, 5, 3>(call, stream);
    }
    if (chunks <= 6 * 32) {
      return launch_rows<T, 1, 6, 5>(call, stream);
    }
  } else if (chunks <= 2 * 32) {  // wider, fp32's loads in flight would take too many registers
    return launch_rows<T, 1, 2, 0>(call, stream);
  }
  return chunks <= 3 * 128 ? launch_rows<T, 4, 3, 0>(call, stream)
                           : launch_rows<T, 4, 8, 3>(call, stream);
}

}  // namespace

cudaError_t residual_norm_forward(const ResidualNormForward& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  if ((call.h_type != call.type && call.h_type != DType::kF32) ||
      (!call.has_norm && (call.mean != nullptr || call.rstd != nullptr))) {
    return cudaErrorInvalidValue;
  }
  if (call.h_fp8.transposed != nullptr &&
      (call.h_fp8.data == nullptr || call.width % kTileSegment != 0 ||
       !is_aligned_to<16>(call.h_fp8.transposed))) {
    return cudaErrorInvalidValue;
  }
  return with_type(call.type,
                   [&](auto type) { return launch_forward<decltype(type)>(call, stream); });
}

}  // namespace kinora::kernels::cuda
