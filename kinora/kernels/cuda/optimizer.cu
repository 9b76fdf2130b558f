// Flat-bucket kernels: cast, sum of squares, the step's decisions, AdamW + EMA + rounded copy, the
// report to the host. One launch goes over all buckets: their chunks of 16,384 elements are
// numbered through, and a block finds the bucket of each that it takes in the table. All are bound
// by memory: vectors of four elements, and enough of them in flight (for AdamW eight elements of
// each of five arrays a thread; hints to the cache that they come but once made it 8 % slower on an
// H200). What is not kept in fp32 goes through a kernel of its own, in which a warp takes a block
// of codes. Compiled without fused multiply-adds (CMakeLists.txt), so that results agree with the
// CPU's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cuda/optimizer.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192;
constexpr int kWidth = 4;  // elements of a vector
constexpr int kTotalThreads = 1024;
constexpr int64_t kVectors = kBucketChunk / kWidth;  // of a chunk

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
  return ceil_div(count, kWidth);
}

unsigned num_blocks(int64_t count) {
  return static_cast<unsigned>(std::min(ceil_div(num_vectors(count), kThreads), kMaxBlocks));
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
template <int kBlock>
__device__ double block_sum(double value) {
  __shared__ double partial[kBlock];
  partial[threadIdx.x] = value;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      partial[threadIdx.x] += partial[threadIdx.x + half];
    }
  }
  return partial[0];
}

/// The last bucket, not before `first`, whose first chunk is at most `chunk`: an empty bucket has
/// the first chunk of the one that follows.
__device__ __forceinline__ int bucket_of(const BucketTable& table, int64_t chunk, int first) {
  int last = table.num_buckets - 1;
  if (first == last || table.buckets[first + 1].first_chunk > chunk) {
    return first;  // mostly so where chunks come in order
  }
  while (first < last) {
    const int middle = (first + last + 1) / 2;
    if (table.buckets[middle].first_chunk <= chunk) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

__device__ __forceinline__ double add_squares(double sum, const Vector& values) {
#pragma unroll
  for (const float value : values.x) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum;
}

/// A block for each chunk. Thread t adds vectors t, t + 256, ... of it in this order.
__global__ void __launch_bounds__(kThreads)
    partial_sums_kernel(BucketTable table, double* __restrict__ partial) {
  const int64_t chunk = blockIdx.x;
  const UpdateBucket& bucket = table.buckets[bucket_of(table, chunk, 0)];
  const float* grad = bucket.buffers.grad;
  const int64_t begin = (chunk - bucket.first_chunk) * kBucketChunk;
  const int64_t end = min(bucket.count, begin + kBucketChunk);
  double sum = 0.0;
  if (bucket.aligned != 0 && end - begin == kBucketChunk) {
    constexpr int kInFlight = 4;
#pragma unroll 1
    for (int64_t v = threadIdx.x; v < kVectors; v += kInFlight * kThreads) {
      Vector values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        values[i] = load(grad, begin + (v + i * kThreads) * kWidth, end, true);
      }
#pragma unroll
      for (const Vector& vector : values) {
        sum = add_squares(sum, vector);
      }
    }
  } else {
    for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
      sum = add_squares(sum, load(grad, i, end, bucket.aligned != 0 && i + kWidth <= end));
    }
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) {
    partial[chunk] = sum;
  }
}

__global__ void __launch_bounds__(kTotalThreads)
    total_sum_kernel(const double* __restrict__ partial, int64_t count,
                     StepControl* __restrict__ control) {
  double sum = 0.0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) {
    sum += partial[i];
  }
  sum = block_sum<kTotalThreads>(sum);
  if (threadIdx.x == 0) {
    control->grad_sum_squares += sum;
  }
}

__device__ __forceinline__ Vector load_bf16(const uint16_t* array, int64_t first) {
  const ushort4 packed = *reinterpret_cast<const ushort4*>(array + first);
  return {{widen_bf16(packed.x), widen_bf16(packed.y), widen_bf16(packed.z), widen_bf16(packed.w)}};
}

/// A block for each chunk.
template <UpdateRule kRule>
__global__ void __launch_bounds__(kThreads)
    make_directions_kernel(BucketTable table, UpdateParameters parameters,
                           const StepControl* __restrict__ control) {
  __shared__ UpdateScalars scalars;
  if (control->skip != 0) {
    return;
  }
  const int64_t chunk = blockIdx.x;
  const UpdateBucket& bucket = table.buckets[bucket_of(table, chunk, 0)];
  const UpdateBuffers& buffers = bucket.buffers;
  if (threadIdx.x == 0) {
    scalars = update_scalars(parameters, *control, buffers.lr_factor);
  }
  __syncthreads();
  const int64_t begin = (chunk - bucket.first_chunk) * kBucketChunk;
  const int64_t end = min(bucket.count, begin + kBucketChunk);
  for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
    const bool whole = bucket.aligned != 0 && i + kWidth <= end;
    Vector weight = {};
    Vector exp_avg_sq = {};
    if constexpr (directs_by_weights(kRule)) {
      weight = buffers.master != nullptr
                   ? load(buffers.master, i, end, whole)
                   : load_bf16(static_cast<const uint16_t*>(buffers.compute), i);
    }
    if constexpr (has_second_moment(kRule)) {
      exp_avg_sq = load(buffers.exp_avg_sq, i, end, whole);
    }
    Vector base = {};
    Vector grad_sum = {};
    if constexpr (kRule == UpdateRule::kProdigy) {
      base = load(buffers.base, i, end, whole);
      grad_sum = load(buffers.grad_sum, i, end, whole);
    }
    Vector direction = load(buffers.grad, i, end, whole);
    Vector exp_avg = load(buffers.exp_avg, i, end, whole);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      direct_element<kRule>(scalars, weight.x[lane], base.x[lane], &direction.x[lane],
                            &exp_avg.x[lane], &exp_avg_sq.x[lane], &grad_sum.x[lane]);
    }
    if constexpr (kRule == UpdateRule::kProdigy) {
      store(buffers.grad_sum, i, end, whole, grad_sum);
    }
    store(buffers.grad, i, end, whole, direction);
    store(buffers.exp_avg, i, end, whole, exp_avg);
    if constexpr (has_second_moment(kRule)) {
      store(buffers.exp_avg_sq, i, end, whole, exp_avg_sq);
    }
  }
}

__global__ void prepare_update_kernel(StepControl* control, UpdatePolicy policy,
                                      const StepExchange* exchange) {
  kernels::prepare_update(control, policy, exchange);
}

__global__ void conclude_update_kernel(StepControl* control) {
  kernels::conclude_update(control);
}

__global__ void adapt_distance_kernel(StepControl* control, UpdatePolicy policy) {
  kernels::adapt_distance(control, policy);
}

__global__ void publish_report_kernel(const StepControl* control, const float* loss,
                                      StepExchange* exchange) {
  volatile StepReport* report = write_report(*control, loss, exchange);
  __threadfence_system();
  report->step = control->steps;
}

/// kUnroll vectors of each array, kThreads * kWidth elements apart: loaded before the first is
/// used. squares: those of the gradient are added in their order; null: not wanted.
template <UpdateRule kRule, int kEmas, int kUnroll>
__device__ __forceinline__ void update_whole(const UpdateBuffers& buffers,
                                             const UpdateScalars& scalars, int64_t first,
                                             bool leaves_grad, double* squares) {
  constexpr int kStride = kThreads * kWidth;
  Vector weight[kUnroll];
  Vector exp_avg[kUnroll];
  Vector exp_avg_sq[kUnroll];
  Vector grad[kUnroll];
  Vector base[kUnroll];
  Vector ema[kEmas > 0 ? kEmas : 1][kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    grad[i] = load(buffers.grad, first + i * kStride, 0, true);
    if constexpr (reads_first_moment(kRule)) {
      exp_avg[i] = load(buffers.exp_avg, first + i * kStride, 0, true);
    }
    if constexpr (kRule == UpdateRule::kScheduleFree) {
      base[i] = load(buffers.base, first + i * kStride, 0, true);
    }
    if constexpr (has_second_moment(kRule)) {
      exp_avg_sq[i] = load(buffers.exp_avg_sq, first + i * kStride, 0, true);
    }
    weight[i] = load(buffers.master, first + i * kStride, 0, true);
#pragma unroll
    for (int k = 0; k < kEmas; ++k) {
      ema[k][i] = load(buffers.ema[k], first + i * kStride, 0, true);
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (squares != nullptr) {
      *squares = add_squares(*squares, grad[i]);
    }
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      update_element<kRule>(scalars, grad[i].x[lane], &weight[i].x[lane], &exp_avg[i].x[lane],
                            &exp_avg_sq[i].x[lane], &base[i].x[lane], &ema[0][i].x[lane]);
    }
    if constexpr (moves_moments(kRule)) {
      if constexpr (reads_first_moment(kRule)) {
        store(buffers.exp_avg, first + i * kStride, 0, true, exp_avg[i]);
      }
      if constexpr (has_second_moment(kRule)) {
        store(buffers.exp_avg_sq, first + i * kStride, 0, true, exp_avg_sq[i]);
      }
    }
    if constexpr (kRule == UpdateRule::kScheduleFree) {
      store(buffers.base, first + i * kStride, 0, true, base[i]);
    }
    store(buffers.master, first + i * kStride, 0, true, weight[i]);
    if (!leaves_grad) {
      store(buffers.grad, first + i * kStride, 0, true, Vector{});
    }
#pragma unroll
    for (int k = 0; k < kEmas; ++k) {
#pragma unroll
      for (int lane = 0; lane < kWidth && k >= first_ema(kRule); ++lane) {
        ema[k][i].x[lane] =
            ema[k][i].x[lane] * scalars.ema_keep[k] + weight[i].x[lane] * scalars.ema_take[k];
      }
      store(buffers.ema[k], first + i * kStride, 0, true, ema[k][i]);
    }
    if (buffers.compute != nullptr) {
      store_rounded(static_cast<uint16_t*>(buffers.compute), buffers.compute_type,
                    first + i * kStride, 0, true, weight[i]);
    }
  }
}

/// One vector at any alignment.
template <UpdateRule kRule, int kEmas>
__device__ __noinline__ void update_some(const UpdateBuffers& buffers, const UpdateScalars& scalars,
                                         int64_t first, int64_t end) {
  Vector weight = load(buffers.master, first, end, false);
  Vector exp_avg = {};
  Vector exp_avg_sq = {};
  Vector base = {};
  Vector mean = {};
  if constexpr (reads_first_moment(kRule)) {
    exp_avg = load(buffers.exp_avg, first, end, false);
  }
  if constexpr (kRule == UpdateRule::kScheduleFree) {
    base = load(buffers.base, first, end, false);
    mean = load(buffers.ema[0], first, end, false);
  }
  if constexpr (has_second_moment(kRule)) {
    exp_avg_sq = load(buffers.exp_avg_sq, first, end, false);
  }
  const Vector grad = load(buffers.grad, first, end, false);
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    update_element<kRule>(scalars, grad.x[lane], &weight.x[lane], &exp_avg.x[lane],
                          &exp_avg_sq.x[lane], &base.x[lane], &mean.x[lane]);
  }
  store(buffers.master, first, end, false, weight);
  if constexpr (kRule == UpdateRule::kScheduleFree) {
    store(buffers.base, first, end, false, base);
    store(buffers.ema[0], first, end, false, mean);
  }
  if constexpr (moves_moments(kRule)) {
    if constexpr (reads_first_moment(kRule)) {
      store(buffers.exp_avg, first, end, false, exp_avg);
    }
    if constexpr (has_second_moment(kRule)) {
      store(buffers.exp_avg_sq, first, end, false, exp_avg_sq);
    }
  }
  store(buffers.grad, first, end, false, Vector{});
#pragma unroll
  for (int k = first_ema(kRule); k < kEmas; ++k) {
    Vector ema = load(buffers.ema[k], first, end, false);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      ema.x[lane] = ema.x[lane] * scalars.ema_keep[k] + weight.x[lane] * scalars.ema_take[k];
    }
    store(buffers.ema[k], first, end, false, ema);
  }
  if (buffers.compute != nullptr) {
    store_rounded(static_cast<uint16_t*>(buffers.compute), buffers.compute_type, first, end, false,
                  weight);
  }
}

/// A block takes every gridDim-th chunk. partial: as partial_sums_kernel's; null: not wanted.
template <UpdateRule kRule, int kEmas, int kUnroll, int kBlocksPerSm>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    update_weights_kernel(BucketTable table, UpdateParameters parameters,
                          const StepControl* __restrict__ control, double* __restrict__ partial) {
  __shared__ UpdateScalars shared_scalars;
  __shared__ int skip;
  if (threadIdx.x == 0) {  // divisions in double are slow on many GPUs: once a block
    skip = control->skip;
    shared_scalars = update_scalars(parameters, *control, 1.0);
  }
  __syncthreads();
  UpdateScalars scalars = shared_scalars;
  double lr_factor = 1.0;
  constexpr int64_t kStep = int64_t{kThreads} * kWidth * kUnroll;
  int index = 0;
  for (int64_t chunk = blockIdx.x; chunk < table.num_chunks; chunk += gridDim.x) {
    index = bucket_of(table, chunk, index);
    const UpdateBucket& bucket = table.buckets[index];
    const UpdateBuffers buffers = bucket.buffers;
    if (buffers.lr_factor != lr_factor) {  // for the whole block alike
      lr_factor = buffers.lr_factor;
      __syncthreads();
      if (threadIdx.x == 0) {
        shared_scalars = update_scalars(parameters, *control, lr_factor);
      }
      __syncthreads();
      scalars = shared_scalars;
    }
    const int64_t begin = (chunk - bucket.first_chunk) * kBucketChunk;
    const int64_t end = min(bucket.count, begin + kBucketChunk);
    const bool whole = bucket.aligned != 0 && (end - begin) % kStep == 0;
    const bool leaves_grad = buffers.leaves_grad;
    double sum = 0.0;
    double* const squares = partial != nullptr ? &sum : nullptr;
    if (skip != 0) {
      for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
        if (squares != nullptr) {
          sum = add_squares(sum, load(buffers.grad, i, end, whole));
        }
        if (!leaves_grad) {
          store(buffers.grad, i, end, whole, Vector{});
        }
      }
    } else if (whole) {
#pragma unroll 1
      for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kStep) {
        update_whole<kRule, kEmas, kUnroll>(buffers, scalars, i, leaves_grad, squares);
      }
    } else {
#pragma unroll 1
      for (int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
        if (squares != nullptr) {
          sum = add_squares(sum, load(buffers.grad, i, end, false));
        }
        // By reference to where they lie, not to copies in local memory.
        update_some<kRule, kEmas>(bucket.buffers, shared_scalars, i, end);
      }
    }
    if (squares != nullptr) {
      __syncthreads();  // of the chunk before
      sum = block_sum<kThreads>(sum);
      if (threadIdx.x == 0) {
        partial[chunk] = sum;
      }
    }
  }
}

__device__ const CodeMap kDeviceCodes[2] = {make_code_map(true), make_code_map(false)};

/// Vectors of a block of codes that a lane has, 32 vectors apart.
constexpr int kLaneVectors = kCodeBlock / (kWidth * 32);

__device__ __forceinline__ void decode(const CodedMoment& moment, const CodeMap& map, int64_t block,
                                       int lane, Vector* values) {
  const float scale = moment.scales[block];
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
    const int64_t first = block * kCodeBlock + (i * 32 + lane) * kWidth;
    const uchar4 codes = *reinterpret_cast<const uchar4*>(moment.codes + first);
    values[i] = {{map.value[codes.x] * scale, map.value[codes.y] * scale,
                  map.value[codes.z] * scale, map.value[codes.w] * scale}};
  }
}

__device__ __forceinline__ void encode(const CodedMoment& moment, const CodeMap& map, int64_t block,
                                       int lane, const Vector* values) {
  float scale = 0.0F;
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
#pragma unroll
    for (const float value : values[i].x) {
      scale = fmaxf(scale, fabsf(value));
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    scale = fmaxf(scale, __shfl_xor_sync(0xffffffffU, scale, distance));
  }
  if (lane == 0) {
    moment.scales[block] = scale;
  }
  const float multiplier = code_multiplier(scale);
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
    const int64_t first = block * kCodeBlock + (i * 32 + lane) * kWidth;
    *reinterpret_cast<uchar4*>(moment.codes + first) =
        make_uchar4(nearest_code(map.bound, values[i].x[0] * multiplier),
                    nearest_code(map.bound, values[i].x[1] * multiplier),
                    nearest_code(map.bound, values[i].x[2] * multiplier),
                    nearest_code(map.bound, values[i].x[3] * multiplier));
  }
}

/// Rounds the weights, and stores them.
__device__ __forceinline__ void store_stochastically(uint16_t* array, int64_t first,
                                                     const PhiloxBlock& random, Vector* weight) {
  uint16_t bits[kWidth];
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    bits[lane] = round_stochastically(weight->x[lane], random.word[lane]);
    weight->x[lane] = widen_bf16(bits[lane]);
  }
  *reinterpret_cast<ushort4*>(array + first) = make_ushort4(bits[0], bits[1], bits[2], bits[3]);
}

/// A warp's block of kCodeBlock elements.
template <UpdateRule kRule, bool kCoded>
__device__ __forceinline__ void update_block(const UpdateBucket& bucket,
                                             const UpdateScalars& scalars,
                                             const RandomStream& rounding, const CodeMap* maps,
                                             int num_emas, int64_t block, int lane) {
  const UpdateBuffers& buffers = bucket.buffers;
  auto* compute = static_cast<uint16_t*>(buffers.compute);
  Vector weight[kLaneVectors];
  Vector exp_avg[kLaneVectors];
  Vector exp_avg_sq[kLaneVectors] = {};
  Vector grad[kLaneVectors];
  const auto place = [&](int i) { return block * kCodeBlock + (i * 32 + lane) * kWidth; };
  if constexpr (kCoded) {
    decode(buffers.coded_avg, maps[0], block, lane, exp_avg);
    if constexpr (has_second_moment(kRule)) {
      decode(buffers.coded_avg_sq, maps[1], block, lane, exp_avg_sq);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
    grad[i] = load(buffers.grad, place(i), 0, true);
    weight[i] = buffers.master != nullptr ? load(buffers.master, place(i), 0, true)
                                          : load_bf16(compute, place(i));
    if constexpr (!kCoded && reads_first_moment(kRule)) {
      exp_avg[i] = load(buffers.exp_avg, place(i), 0, true);
    }
    if constexpr (!kCoded && has_second_moment(kRule)) {
      exp_avg_sq[i] = load(buffers.exp_avg_sq, place(i), 0, true);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneVectors; ++i) {
    Vector base = {};
    Vector mean = {};
    if constexpr (kRule == UpdateRule::kScheduleFree) {
      base = load(buffers.base, place(i), 0, true);
      mean = load(buffers.ema[0], place(i), 0, true);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      update_element<kRule>(scalars, grad[i].x[k], &weight[i].x[k], &exp_avg[i].x[k],
                            &exp_avg_sq[i].x[k], &base.x[k], &mean.x[k]);
    }
    if constexpr (kRule == UpdateRule::kScheduleFree) {
      store(buffers.base, place(i), 0, true, base);
      store(buffers.ema[0], place(i), 0, true, mean);
    }
    if constexpr (!kCoded && moves_moments(kRule)) {
      if constexpr (reads_first_moment(kRule)) {
        store(buffers.exp_avg, place(i), 0, true, exp_avg[i]);
      }
      if constexpr (has_second_moment(kRule)) {
        store(buffers.exp_avg_sq, place(i), 0, true, exp_avg_sq[i]);
      }
    }
    if (!bucket.buffers.leaves_grad) {
      store(buffers.grad, place(i), 0, true, Vector{});
    }
    if (buffers.master == nullptr) {
      const auto number = static_cast<uint32_t>((buffers.place + place(i)) / kWidth);
      store_stochastically(compute, place(i), philox(rounding, number), &weight[i]);
    } else {
      store(buffers.master, place(i), 0, true, weight[i]);
      if (compute != nullptr) {
        store_rounded(compute, buffers.compute_type, place(i), 0, true, weight[i]);
      }
    }
    for (int k = first_ema(kRule); k < num_emas; ++k) {
      Vector ema = load(buffers.ema[k], place(i), 0, true);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        ema.x[j] = ema.x[j] * scalars.ema_keep[k] + weight[i].x[j] * scalars.ema_take[k];
      }
      store(buffers.ema[k], place(i), 0, true, ema);
    }
  }
  if constexpr (kCoded) {
    encode(buffers.coded_avg, maps[0], block, lane, exp_avg);
    if constexpr (has_second_moment(kRule)) {
      encode(buffers.coded_avg_sq, maps[1], block, lane, exp_avg_sq);
    }
  }
}

/// As update_weights_kernel, where not everything is fp32: buckets of whole blocks, aligned.
template <UpdateRule kRule, bool kCoded>
__global__ void __launch_bounds__(kThreads)
    update_blocks_kernel(BucketTable table, UpdateParameters parameters,
                         const StepControl* __restrict__ control) {
  __shared__ UpdateScalars scalars;
  __shared__ CodeMap maps[kCoded ? 2 : 1];
  if constexpr (kCoded) {
    constexpr int kWords = sizeof(maps) / sizeof(float);
    for (int i = threadIdx.x; i < kWords; i += kThreads) {
      reinterpret_cast<float*>(maps)[i] = reinterpret_cast<const float*>(kDeviceCodes)[i];
    }
  }
  if (threadIdx.x == 0) {
    scalars = update_scalars(parameters, *control, 1.0);
  }
  __syncthreads();
  const bool skips = control->skip != 0;
  const int lane = threadIdx.x % 32;
  double lr_factor = 1.0;
  int index = 0;
  for (int64_t chunk = blockIdx.x; chunk < table.num_chunks; chunk += gridDim.x) {
    index = bucket_of(table, chunk, index);
    const UpdateBucket& bucket = table.buckets[index];
    if (bucket.buffers.lr_factor != lr_factor) {  // for the whole block alike
      lr_factor = bucket.buffers.lr_factor;
      __syncthreads();
      if (threadIdx.x == 0) {
        scalars = update_scalars(parameters, *control, lr_factor);
      }
      __syncthreads();
    }
    const RandomStream rounding = rounding_stream(parameters, *control, bucket.buffers.rounding);
    const int64_t begin = (chunk - bucket.first_chunk) * kBucketChunk;
    const int64_t end = min(bucket.count, begin + kBucketChunk);
    for (int64_t block = begin / kCodeBlock + threadIdx.x / 32; block < end / kCodeBlock;
         block += kThreads / 32) {
      if (!skips) {
        update_block<kRule, kCoded>(bucket, scalars, rounding, maps, parameters.num_emas, block,
                                    lane);
      } else if (!bucket.buffers.leaves_grad) {
        for (int i = 0; i < kLaneVectors; ++i) {
          store(bucket.buffers.grad, block * kCodeBlock + (i * 32 + lane) * kWidth, 0, true,
                Vector{});
        }
      }
    }
  }
}

template <UpdateRule kRule>
cudaError_t launch_blocks(const BucketTable& table, const UpdateParameters& parameters,
                          const StepControl* control, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min(table.num_chunks, kMaxBlocks));
  if (parameters.moments == MomentFormat::k8Bit) {
    update_blocks_kernel<kRule, true><<<blocks, kThreads, 0, stream>>>(table, parameters, control);
  } else {
    update_blocks_kernel<kRule, false><<<blocks, kThreads, 0, stream>>>(table, parameters, control);
  }
  return cudaGetLastError();
}

template <UpdateRule kRule, int kEmas>
cudaError_t launch_rule(const BucketTable& table, const UpdateParameters& parameters,
                        const StepControl* control, double* partial, cudaStream_t stream) {
  // As many bytes in flight as the registers have room for: fewer are left with more arrays.
  constexpr int kUnroll = kEmas <= 1 ? 2 : 1;
  constexpr int kBlocksPerSm = kEmas <= 2 ? 3 : 2;
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t blocks = std::min(table.num_chunks, int64_t{kBlocksPerSm} * multiprocessors);
  update_weights_kernel<kRule, kEmas, kUnroll, kBlocksPerSm>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(table, parameters, control, partial);
  return cudaGetLastError();
}

template <int kEmas>
cudaError_t launch_update(const BucketTable& table, const UpdateParameters& parameters,
                          const StepControl* control, double* partial, cudaStream_t stream) {
  switch (parameters.rule) {
    case UpdateRule::kAdamW:
      return launch_rule<UpdateRule::kAdamW, kEmas>(table, parameters, control, partial, stream);
    case UpdateRule::kLion:
      return launch_rule<UpdateRule::kLion, kEmas>(table, parameters, control, partial, stream);
    case UpdateRule::kSgd:
      return launch_rule<UpdateRule::kSgd, kEmas>(table, parameters, control, partial, stream);
    case UpdateRule::kProdigy:
      return launch_rule<UpdateRule::kProdigy, kEmas>(table, parameters, control, partial, stream);
    case UpdateRule::kScheduleFree:
      if constexpr (kEmas > 0) {
        return launch_rule<UpdateRule::kScheduleFree, kEmas>(table, parameters, control, partial,
                                                             stream);
      }
      return cudaErrorInvalidValue;
    case UpdateRule::kMuon:
    case UpdateRule::kAdafactor:
    case UpdateRule::kCame:
    case UpdateRule::kLamb:
      return launch_rule<UpdateRule::kMuon, kEmas>(table, parameters, control, partial, stream);
  }
  return cudaErrorInvalidValue;
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

size_t sum_squares_workspace_bytes(int64_t num_chunks) {
  return static_cast<size_t>(num_chunks) * sizeof(double);
}

cudaError_t sum_squares(const BucketTable& table, void* workspace, StepControl* control,
                        cudaStream_t stream) {
  if (table.num_chunks == 0) {
    return cudaSuccess;
  }
  auto* partial = static_cast<double*>(workspace);
  partial_sums_kernel<<<static_cast<unsigned>(table.num_chunks), kThreads, 0, stream>>>(table,
                                                                                        partial);
  total_sum_kernel<<<1, kTotalThreads, 0, stream>>>(partial, table.num_chunks, control);
  return cudaGetLastError();
}

cudaError_t prepare_update(StepControl* control, const UpdatePolicy& policy,
                           const StepExchange* exchange, cudaStream_t stream) {
  prepare_update_kernel<<<1, 1, 0, stream>>>(control, policy, exchange);
  return cudaGetLastError();
}

cudaError_t conclude_update(StepControl* control, cudaStream_t stream) {
  conclude_update_kernel<<<1, 1, 0, stream>>>(control);
  return cudaGetLastError();
}

cudaError_t make_directions(const BucketTable& table, const UpdateParameters& parameters,
                            const StepControl* control, cudaStream_t stream) {
  if (table.num_chunks == 0) {
    return cudaSuccess;
  }
  const auto launch = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(table.num_chunks), kThreads, 0, stream>>>(table, parameters,
                                                                             control);
    return cudaGetLastError();
  };
  switch (parameters.rule) {
    case UpdateRule::kMuon:
      return launch(make_directions_kernel<UpdateRule::kMuon>);
    case UpdateRule::kLamb:
      return launch(make_directions_kernel<UpdateRule::kLamb>);
    case UpdateRule::kProdigy:
      return launch(make_directions_kernel<UpdateRule::kProdigy>);
    default:
      return cudaErrorInvalidValue;  // the rule has one pass
  }
}

cudaError_t adapt_distance(StepControl* control, const UpdatePolicy& policy, cudaStream_t stream) {
  adapt_distance_kernel<<<1, 1, 0, stream>>>(control, policy);
  return cudaGetLastError();
}

namespace {

cudaError_t launch_any(const BucketTable& table, const UpdateParameters& parameters,
                       const StepControl* control, double* partial, cudaStream_t stream) {
  if (updates_blocks(parameters)) {
    switch (parameters.rule) {
      case UpdateRule::kAdamW:
        return launch_blocks<UpdateRule::kAdamW>(table, parameters, control, stream);
      case UpdateRule::kLion:
        return launch_blocks<UpdateRule::kLion>(table, parameters, control, stream);
      case UpdateRule::kSgd:
        return launch_blocks<UpdateRule::kSgd>(table, parameters, control, stream);
      case UpdateRule::kProdigy:
        return launch_blocks<UpdateRule::kProdigy>(table, parameters, control, stream);
      case UpdateRule::kScheduleFree:
        return launch_blocks<UpdateRule::kScheduleFree>(table, parameters, control, stream);
      case UpdateRule::kMuon:
      case UpdateRule::kAdafactor:
      case UpdateRule::kCame:
      case UpdateRule::kLamb:
        return launch_blocks<UpdateRule::kMuon>(table, parameters, control, stream);
    }
    return cudaErrorInvalidValue;
  }
  static_assert(kMaxEmas == 4);
  switch (parameters.num_emas) {
    case 0:
      return launch_update<0>(table, parameters, control, partial, stream);
    case 1:
      return launch_update<1>(table, parameters, control, partial, stream);
    case 2:
      return launch_update<2>(table, parameters, control, partial, stream);
    case 3:
      return launch_update<3>(table, parameters, control, partial, stream);
    case 4:
      return launch_update<4>(table, parameters, control, partial, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t update_weights(const BucketTable& table, const UpdateParameters& parameters,
                           const StepControl* control, cudaStream_t stream) {
  return table.num_chunks == 0 ? cudaSuccess
                               : launch_any(table, parameters, control, nullptr, stream);
}

cudaError_t update_and_add_squares(const BucketTable& table, const UpdateParameters& parameters,
                                   void* workspace, StepControl* control, cudaStream_t stream) {
  if (table.num_chunks == 0) {
    return cudaSuccess;
  }
  auto* const partial = static_cast<double*>(workspace);
  const bool is_apart = updates_blocks(parameters);
  cudaError_t error = is_apart ? sum_squares(table, workspace, control, stream) : cudaSuccess;
  if (error == cudaSuccess) {
    error = launch_any(table, parameters, control, is_apart ? nullptr : partial, stream);
  }
  if (error == cudaSuccess && !is_apart) {
    total_sum_kernel<<<1, kTotalThreads, 0, stream>>>(partial, table.num_chunks, control);
    error = cudaGetLastError();
  }
  return error;
}

cudaError_t publish_report(const StepControl* control, const float* loss, StepExchange* exchange,
                           cudaStream_t stream) {
  publish_report_kernel<<<1, 1, 0, stream>>>(control, loss, exchange);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
