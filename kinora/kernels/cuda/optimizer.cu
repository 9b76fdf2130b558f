// Flat-bucket kernels: cast, sum of squares, the step's decisions, AdamW + EMA + rounded copy.
// All are bound by memory: a thread takes four elements at a time with 128-bit loads and stores and
// walks over the array in strides of the grid. Compiled without fused multiply-adds
// (CMakeLists.txt), so that results agree with the CPU's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kinora/kernels/cuda/optimizer.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192;
constexpr int kSumBlocks = 1024;  // fixed, so that the order of additions is
constexpr int kWidth = 4;         // elements of a vector

struct Vector {
  float x[kWidth];
};

/// Elements first ... first + 3 of an array; only those below `count` if not `whole`.
__device__ Vector load(const float* array, int64_t first, int64_t count, bool whole) {
  Vector result = {};
  if (whole) {
    const float4 packed = *reinterpret_cast<const float4*>(array + first);
    result = {{packed.x, packed.y, packed.z, packed.w}};
  } else {
    for (int i = 0; i < kWidth; ++i) {
      result.x[i] = first + i < count ? array[first + i] : 0.0F;
    }
  }
  return result;
}

__device__ void store(float* array, int64_t first, int64_t count, bool whole,
                      const Vector& values) {
  if (whole) {
    *reinterpret_cast<float4*>(array + first) =
        make_float4(values.x[0], values.x[1], values.x[2], values.x[3]);
  } else {
    for (int i = 0; i < kWidth; ++i) {
      if (first + i < count) {
        array[first + i] = values.x[i];
      }
    }
  }
}

__device__ uint16_t round_to(float value, DType type) {
  return type == DType::kBF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                              : __half_as_ushort(__float2half_rn(value));
}

__device__ void store_rounded(uint16_t* array, DType type, int64_t first, int64_t count, bool whole,
                              const Vector& values) {
  if (whole) {
    *reinterpret_cast<ushort4*>(array + first) =
        make_ushort4(round_to(values.x[0], type), round_to(values.x[1], type),
                     round_to(values.x[2], type), round_to(values.x[3], type));
  } else {
    for (int i = 0; i < kWidth; ++i) {
      if (first + i < count) {
        array[first + i] = round_to(values.x[i], type);
      }
    }
  }
}

template <size_t kBytes>
bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;  // null is aligned
}

int64_t num_vectors(int64_t count) {
  return (count + kWidth - 1) / kWidth;
}

unsigned num_blocks(int64_t count) {
  return static_cast<unsigned>(
      std::min((num_vectors(count) + kThreads - 1) / kThreads, kMaxBlocks));
}

__global__ void __launch_bounds__(kThreads)
    cast_kernel(const float* __restrict__ in, int64_t count, DType type, uint16_t* __restrict__ out,
                bool aligned) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < count;
       i += stride) {
    const bool whole = aligned && i + kWidth <= count;
    store_rounded(out, type, i, count, whole, load(in, i, count, whole));
  }
}

/// The block's sum in thread 0, pairwise in a fixed order.
__device__ double block_sum(double value) {
  __shared__ double partial[kThreads];
  partial[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      partial[threadIdx.x] += partial[threadIdx.x + half];
    }
  }
  return partial[0];
}

__global__ void __launch_bounds__(kThreads)
    partial_sums_kernel(const float* __restrict__ x, int64_t count, double* __restrict__ partial,
                        bool aligned) {
  double sum = 0.0;
  constexpr int64_t kStride = int64_t{kSumBlocks} * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < count;
       i += kStride) {
    const Vector values = load(x, i, count, aligned && i + kWidth <= count);
    for (const float value : values.x) {
      sum += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    total_sum_kernel(const double* __restrict__ partial, StepControl* __restrict__ control) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < kSumBlocks; i += kThreads) {
    sum += partial[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    control->grad_sum_squares += sum;
  }
}

__global__ void prepare_update_kernel(StepControl* control, UpdatePolicy policy) {
  kernels::prepare_update(control, policy);
}

__global__ void __launch_bounds__(kThreads)
    adamw_update_kernel(AdamwBuffers buffers, AdamwParameters parameters,
                        const StepControl* __restrict__ control, int64_t count, bool aligned) {
  __shared__ AdamwScalars shared_scalars;
  __shared__ int skip;
  if (threadIdx.x == 0) {  // divisions in double are slow on many GPUs: once a block
    skip = control->skip;
    shared_scalars = adamw_scalars(parameters, *control);
  }
  __syncthreads();
  const AdamwScalars scalars = shared_scalars;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < count;
       i += stride) {
    const bool whole = aligned && i + kWidth <= count;
    if (skip == 0) {
      Vector weight = load(buffers.master, i, count, whole);
      Vector exp_avg = load(buffers.exp_avg, i, count, whole);
      Vector exp_avg_sq = load(buffers.exp_avg_sq, i, count, whole);
      const Vector grad = load(buffers.grad, i, count, whole);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        adamw_element(scalars, grad.x[lane], &weight.x[lane], &exp_avg.x[lane],
                      &exp_avg_sq.x[lane]);
      }
      store(buffers.master, i, count, whole, weight);
      store(buffers.exp_avg, i, count, whole, exp_avg);
      store(buffers.exp_avg_sq, i, count, whole, exp_avg_sq);
#pragma unroll
      for (int k = 0; k < kMaxEmas; ++k) {
        if (k < parameters.num_emas) {
          Vector ema = load(buffers.ema[k], i, count, whole);
#pragma unroll
          for (int lane = 0; lane < kWidth; ++lane) {
            ema.x[lane] = ema.x[lane] * scalars.ema_keep[k] + weight.x[lane] * scalars.ema_take[k];
          }
          store(buffers.ema[k], i, count, whole, ema);
        }
      }
      if (buffers.compute != nullptr) {
        store_rounded(static_cast<uint16_t*>(buffers.compute), buffers.compute_type, i, count,
                      whole, weight);
      }
    }
    store(buffers.grad, i, count, whole, Vector{});
  }
}

}  // namespace

cudaError_t cast(const float* in, int64_t count, DType type, void* out, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  cast_kernel<<<num_blocks(count), kThreads, 0, stream>>>(
      in, count, type, static_cast<uint16_t*>(out), is_aligned<16>(in) && is_aligned<8>(out));
  return cudaGetLastError();
}

size_t sum_squares_workspace_bytes() {
  return kSumBlocks * sizeof(double);
}

cudaError_t sum_squares(const float* x, int64_t count, void* workspace, StepControl* control,
                        cudaStream_t stream) {
  auto* partial = static_cast<double*>(workspace);
  partial_sums_kernel<<<kSumBlocks, kThreads, 0, stream>>>(x, count, partial, is_aligned<16>(x));
  total_sum_kernel<<<1, kThreads, 0, stream>>>(partial, control);
  return cudaGetLastError();
}

cudaError_t prepare_update(StepControl* control, const UpdatePolicy& policy, cudaStream_t stream) {
  prepare_update_kernel<<<1, 1, 0, stream>>>(control, policy);
  return cudaGetLastError();
}

cudaError_t adamw_update(const AdamwBuffers& buffers, const AdamwParameters& parameters,
                         const StepControl* control, int64_t count, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  bool aligned = is_aligned<16>(buffers.master) && is_aligned<16>(buffers.grad) &&
                 is_aligned<16>(buffers.exp_avg) && is_aligned<16>(buffers.exp_avg_sq) &&
                 is_aligned<8>(buffers.compute);
  for (int k = 0; k < parameters.num_emas; ++k) {
    aligned = aligned && is_aligned<16>(buffers.ema[k]);
  }
  adamw_update_kernel<<<num_blocks(count), kThreads, 0, stream>>>(buffers, parameters, control,
                                                                  count, aligned);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
