// out[b, i] = transform(Philox(stream of row b, first_element + i)).
// A thread makes one block of four numbers of one row, and walks over the array in strides of the
// grid. Whole blocks that are aligned are stored as one 128-bit word.
#include "kinora/kernels/cuda/random.h"

#include <algorithm>

#include "kinora/core/rounding.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 65536;

__global__ void random_fill_kernel(float* __restrict__ out, int64_t rows, int64_t row_size,
                                   const int64_t* __restrict__ sample_index,
                                   const int64_t* __restrict__ seed, RandomStream stream,
                                   const int64_t* __restrict__ step, uint64_t first_element,
                                   Distribution distribution, float scale, bool whole_vectors) {
  if (step != nullptr) {
    stream.step = static_cast<uint32_t>(*step);
  }
  const int64_t first_block = static_cast<int64_t>(first_element / 4);
  const int64_t last_block = static_cast<int64_t>((first_element + row_size - 1) / 4);
  const int64_t blocks_per_row = last_block - first_block + 1;
  const int64_t total = rows * blocks_per_row;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += stride) {
    const int64_t row = i / blocks_per_row;
    const int64_t block = first_block + i % blocks_per_row;
    if (sample_index != nullptr) {
      stream.sample = static_cast<uint64_t>(sample_index[row]);
    }
    if (seed != nullptr) {
      stream.seed = static_cast<uint64_t>(seed[row]);
    }
    float values[4];
    random_block(stream, static_cast<uint32_t>(block), distribution, scale, values);
    // Where the block's first element falls in the row; negative for a partial first block.
    const int64_t column = block * 4 - static_cast<int64_t>(first_element);
    float* target = out + row * row_size + column;
    if (whole_vectors) {
      *reinterpret_cast<float4*>(target) = make_float4(values[0], values[1], values[2], values[3]);
    } else {
      for (int lane = 0; lane < 4; ++lane) {
        if (column + lane >= 0 && column + lane < row_size) {
          target[lane] = values[lane];
        }
      }
    }
  }
}

}  // namespace

bool has_cuda_kernels() {
  return true;
}

int kernel_capability() {
  // The same for all GPUs of a machine, and asked for before a CUDA graph is recorded.
  static const int compiled = [] {
    cudaFuncAttributes attributes{};
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(random_fill_kernel));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
    }
    return error == cudaSuccess ? attributes.ptxVersion : 0;
  }();
  int device = 0;
  int major = 0;
  int minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return 0;
  }
  return std::min(10 * major + minor, compiled);
}

cudaError_t random_fill(float* out, int64_t rows, int64_t row_size, const int64_t* sample_index,
                        const int64_t* seed, const RandomStream& stream, const int64_t* step,
                        uint64_t first_element, Distribution distribution, float scale,
                        cudaStream_t cuda_stream) {
  if (rows == 0 || row_size == 0) {
    return cudaSuccess;
  }
  const bool whole_vectors = row_size % 4 == 0 && first_element % 4 == 0 &&
                             reinterpret_cast<uintptr_t>(out) % sizeof(float4) == 0;
  const int64_t total = rows * (row_size / 4 + 2);
  const int64_t blocks = std::min(ceil_div(total, kThreads), kMaxBlocks);
  random_fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, cuda_stream>>>(
      out, rows, row_size, sample_index, seed, stream, step, first_element, distribution, scale,
      whole_vectors);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
