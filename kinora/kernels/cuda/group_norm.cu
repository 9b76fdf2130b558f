// GroupNorm (+ SiLU) of [B, P, C] and its gradients, see kernels/group_norm.h. Both ways in two
// passes over the image: sums by channel; then out, by four numbers a channel that follow from
// them:
//
//   forward   sums of x, x^2                             y = f(x * scale + shift)
//   backward  A = sum of du, D = sum of du * (z - mean)  dx = du * scale + x * slope + level
//             with du = dy * f'(x * scale + shift), N elements a group:
//             slope = -rstd^2 * sum_c(scale D) / N
//             level = -sum_c(scale A) / N - slope * (mean - t)
//
// t, what is added to x before the norm, only changes the numbers by channel. Gradients of vectors
// follow from A, D and what forward kept; those summed over the batch by one more kernel.
//
// Two ways. Where the images of a few neighbouring groups (a slab) are small, one launch: a cluster
// of blocks takes a slab of an image, each a range of places that it copies to its shared memory
// all at once, and they add up their sums through each other's; the second pass reads the copy.
// Else three launches over ranges of places, as channel_norm.cu. Sums are fp32 within a range, then
// fp64. Bound by memory.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/async_copy.cuh"
#include "kinora/kernels/cuda/channel_norm.cuh"
#include "kinora/kernels/cuda/channel_norm.h"
#include "kinora/kernels/cuda/cluster.cuh"
#include "kinora/kernels/cuda/group_norm.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int64_t kMaxBatch = ChannelGrid::kMaxDim / 2;
constexpr int kMaxGroupChannels = 256;
constexpr int kGroupThreads = 1024;  // of a block that adds up the ranges' sums of a group
constexpr int kBatchThreads = 128;
constexpr int kGradientUnroll = 2;  // vectors of x and of dy in flight

constexpr int kSlabThreads = 256;
constexpr int kSlabBlocks = 3;  // of a multiprocessor: one copies while the others compute
constexpr int kMaxSlabChannels = 128;
constexpr int64_t kMinSlabBytes = 64;           // of a place: two sectors of memory
constexpr int64_t kBlockBytes = 24 << 10;       // of x: where a slab has more, it takes more blocks
constexpr int64_t kMaxStagedBytes = 128 << 10;  // of a block: where it had more, three launches
constexpr int64_t kOtherSharedBytes = 24 << 10;
constexpr int kPortableCluster = 8;  // that every GPU with clusters can run
constexpr int kMaxCluster = 16;      // that GPUs of compute capability 9.0 can

struct Slabs {
  int groups = 0;  // of a slab; 0: three launches
  int channels = 0;
  int blocks = 1;  // of a cluster
  int places = 0;  // of a thread, at most
  size_t staged_bytes = 0;
};

__device__ __forceinline__ float value_at(const ChannelValues& values, int64_t index) {
  if (values.data == nullptr) {
    return 0.0F;
  }
  switch (values.type) {
    case DType::kBF16:
      return to_float(static_cast<const __nv_bfloat16*>(values.data)[index]);
    case DType::kF16:
      return to_float(static_cast<const __half*>(values.data)[index]);
    default:
      return static_cast<const float*>(values.data)[index];
  }
}

__device__ __forceinline__ void store(const ChannelGradient& gradient, int64_t index,
                                      double value) {
  const auto rounded = static_cast<float>(value);
  switch (gradient.type) {
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(gradient.data)[index] = from_float<__nv_bfloat16>(rounded);
      break;
    case DType::kF16:
      static_cast<__half*>(gradient.data)[index] = from_float<__half>(rounded);
      break;
    default:
      static_cast<float*>(gradient.data)[index] = rounded;
  }
}

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

/// What forward reads by channel, in fp32: of a slab's or a group's channels.
template <int kCount>
struct Terms {
  float t[kCount];
  float weight[kCount];
  float bias[kCount];
};

/// Of channels [first, first + count) of the image blockIdx.y, for all to read after a barrier.
template <int kCount>
__device__ __forceinline__ void load_terms(const GroupNormForward& call, int64_t first, int count,
                                           Terms<kCount>& terms) {
  const int c = static_cast<int>(threadIdx.x);
  if (c < count) {
    const int64_t image = static_cast<int64_t>(blockIdx.y) * call.shape.channels;
    terms.t[c] = value_at(call.channel_bias, first + c) + value_at(call.offset, image + first + c);
    terms.weight[c] = value_at(call.weight, first + c);
    terms.bias[c] = value_at(call.bias, first + c);
  }
}

/// What a warp makes of the sums of x and x^2 over places of a group's channels, the first of which
/// has number `offset` in `terms`: write(channel of the group, scale, shift).
/// @param keeps  whether it also writes call.statistics
template <int kCount, typename Write>
__device__ __forceinline__ void finish_forward(const GroupNormForward& call, int64_t group,
                                               const double* sums, const double* squares,
                                               const Terms<kCount>& terms, int offset, bool keeps,
                                               const Write& write) {
  const GroupNormShape& shape = call.shape;
  const int width = static_cast<int>(shape.channels / shape.groups);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t image = static_cast<int64_t>(blockIdx.y) * shape.channels;
  const auto places = static_cast<double>(shape.places);
  double sum = 0.0;
  double square = 0.0;
  for (int c = lane; c < width; c += 32) {
    const double t = terms.t[offset + c];
    sum += sums[c] + places * t;
    square += squares[c] + t * (2.0 * sums[c] + places * t);
  }
  const double count = places * width;
  const double mean = warp_sum(sum) / count;
  const double spread = warp_sum(square) / count - mean * mean;
  const double variance = spread < 0.0 ? 0.0 : spread;  // NaN stays
  const double rstd = 1.0 / sqrt(variance + call.epsilon);
  for (int c = lane; c < width; c += 32) {
    const int64_t channel = group * width + c;
    const double t = terms.t[offset + c];
    const double scale = rstd * terms.weight[offset + c];
    const double shift = terms.bias[offset + c] + (t - mean) * scale;
    write(c, static_cast<float>(scale), static_cast<float>(shift));
    if (keeps) {
      const int64_t stride = shape.batch * shape.channels;
      float* factors = call.statistics.factors + image + channel;
      factors[0] = static_cast<float>(scale);
      factors[stride] = static_cast<float>(shift);
      factors[2 * stride] = static_cast<float>(mean - t);
      factors[3 * stride] = static_cast<float>(sums[c] / places + t - mean);
    }
  }
  if (keeps && lane == 0) {
    call.statistics.rstd[blockIdx.y * shape.groups + group] = static_cast<float>(rstd);
  }
}

/// Where gradients of vectors meet before they are summed over the batch: fp32 [3, batch,
/// channels], of weight, bias, channel_bias. Null: none is wanted.
using BatchSums = float*;

/// What forward kept of a group, for its channels.
struct GroupFactors {
  const float* scale;
  const float* centre;  ///< mean - t
  const float* excess;  ///< mean over places - mean
  double rstd;
};

__device__ __forceinline__ GroupFactors factors_of(const GroupNormBackward& call, int64_t group) {
  const GroupNormShape& shape = call.shape;
  const int64_t stride = shape.batch * shape.channels;
  const float* first = call.statistics.factors + blockIdx.y * shape.channels +
                       group * (shape.channels / shape.groups);
  return {first, first + 2 * stride, first + 3 * stride,
          call.statistics.rstd[blockIdx.y * shape.groups + group]};
}

/// What a warp makes of the sums A and D over places of a group's channels:
/// write(channel of the group, level, slope).
/// @param keeps  whether it also writes the gradients of vectors
template <typename Write>
__device__ __forceinline__ void finish_backward(const GroupNormBackward& call, int64_t group,
                                                const double* a, const double* d,
                                                const GroupFactors& factors, BatchSums batch_sums,
                                                bool keeps, const Write& write) {
  const GroupNormShape& shape = call.shape;
  const int width = static_cast<int>(shape.channels / shape.groups);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t stride = shape.batch * shape.channels;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * shape.channels + group * width;
  double sum = 0.0;
  double product = 0.0;
  for (int c = lane; c < width; c += 32) {
    sum += a[c] * factors.scale[c];
    product += d[c] * factors.scale[c];
  }
  const auto places = static_cast<double>(shape.places);
  const double count = places * width;
  const double rstd = factors.rstd;
  const double level = -warp_sum(sum) / count;
  const double slope = -rstd * rstd * warp_sum(product) / count;
  for (int c = lane; c < width; c += 32) {
    write(c, static_cast<float>(level - slope * factors.centre[c]), static_cast<float>(slope));
    if (!keeps) {
      continue;
    }
    const double doffset =
        a[c] * factors.scale[c] + places * (level + slope * factors.excess[c]);  // sum of dx
    if (call.doffset.data != nullptr) {
      store(call.doffset, first + c, doffset);
    }
    if (batch_sums != nullptr) {
      batch_sums[first + c] = static_cast<float>(rstd * d[c]);
      batch_sums[stride + first + c] = static_cast<float>(a[c]);
      batch_sums[2 * stride + first + c] = static_cast<float>(doffset);
    }
  }
}

/// dy * f'(x * scale + shift)
template <typename T, bool kSilu>
__device__ __forceinline__ float through(float dy, float x, float scale, float shift) {
  if constexpr (kSilu) {
    const float u = x * scale + shift;
    const float s = sigmoid<T>(u);
    return dy * s * (1.0F + u * (1.0F - s));
  } else {
    return dy;
  }
}

/// a += du, d += du * (z - mean) over the thread's places. Vectors of x and dy: as InMemory.
template <typename T, bool kSilu, typename Vectors>
__device__ __forceinline__ void add_gradients(const GroupNormBackward& call, const Lane<T>& lane,
                                              const Vectors& vectors_x, const Vectors& vectors_dy,
                                              float (&a)[Lane<T>::kChannels],
                                              float (&d)[Lane<T>::kChannels]) {
  constexpr int kChannels = Lane<T>::kChannels;
  const int64_t stride = call.shape.batch * call.shape.channels;
  const int64_t first = blockIdx.y * call.shape.channels + lane.channel();
  const float* factors = call.statistics.factors;
  float scale[kChannels];
  float shift[kChannels];
  float centre[kChannels];
  load_floats<float, kChannels>(factors, first, kChannels, true, scale);
  load_floats<float, kChannels>(factors, stride + first, kChannels, true, shift);
  load_floats<float, kChannels>(factors, 2 * stride + first, kChannels, true, centre);
  const int count = lane.num_places();
  for (int number = 0; number < count; number += kGradientUnroll) {
    Packed<T, kChannels> packed_x[kGradientUnroll];
    Packed<T, kChannels> packed_dy[kGradientUnroll];
#pragma unroll
    for (int i = 0; i < kGradientUnroll; ++i) {
      packed_x[i] = vectors_x(number + i);
      packed_dy[i] = vectors_dy(number + i);  // zeros beyond: du is 0
    }
#pragma unroll
    for (int i = 0; i < kGradientUnroll; ++i) {
      float x[kChannels];
      float dy[kChannels];
      unpack<T, kChannels>(packed_x[i], x);
      unpack<T, kChannels>(packed_dy[i], dy);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float du = through<T, kSilu>(dy[c], x[c], scale[c], shift[c]);
        a[c] += du;
        d[c] += du * (x[c] - centre[c]);
      }
    }
  }
}

/// dx = du * scale + x * slope + level at the thread's places. Vectors of x and dy: as InMemory.
template <typename T, bool kSilu, typename Vectors>
__device__ __forceinline__ void write_gradients(const GroupNormBackward& call, const Lane<T>& lane,
                                                const Vectors& vectors_x, const Vectors& vectors_dy,
                                                const float (&level)[Lane<T>::kChannels],
                                                const float (&slope)[Lane<T>::kChannels]) {
  constexpr int kChannels = Lane<T>::kChannels;
  const int64_t stride = call.shape.batch * call.shape.channels;
  const int64_t first = blockIdx.y * call.shape.channels + lane.channel();
  float scale[kChannels];
  float shift[kChannels];
  load_floats<float, kChannels>(call.statistics.factors, first, kChannels, true, scale);
  load_floats<float, kChannels>(call.statistics.factors, stride + first, kChannels, true, shift);
  const int count = lane.num_places();
  for (int number = 0; number < count; number += kGradientUnroll) {
    Packed<T, kChannels> packed_x[kGradientUnroll];
    Packed<T, kChannels> packed_dy[kGradientUnroll];
#pragma unroll
    for (int i = 0; i < kGradientUnroll; ++i) {
      packed_x[i] = vectors_x(number + i);
      packed_dy[i] = vectors_dy(number + i);
    }
#pragma unroll
    for (int i = 0; i < kGradientUnroll; ++i) {
      const int64_t p = lane.begin + int64_t{number + i} * lane.rows;
      float x[kChannels];
      float dy[kChannels];
      unpack<T, kChannels>(packed_x[i], x);
      unpack<T, kChannels>(packed_dy[i], dy);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float du = through<T, kSilu>(dy[c], x[c], scale[c], shift[c]);
        dy[c] = du * scale[c] + (x[c] * slope[c] + level[c]);
      }
      if (p < lane.end) {
        store_floats<T, kChannels>(call.dx, lane.at(p), kChannels, true, dy);
      }
    }
  }
}

/// A block's part of a slab: the cluster blockIdx.x / cluster_size() takes a slab.
template <typename T>
__device__ __forceinline__ Lane<T> lane_of_slab(const GroupNormShape& shape, int slab,
                                                int slab_channels) {
  const int64_t per_block = ceil_div(shape.places, cluster_size());
  const int64_t first_place = cluster_rank() * per_block;
  return Lane<T>(kSlabThreads, shape.places, shape.channels,
                 static_cast<int64_t>(slab) * slab_channels, slab_channels / Lane<T>::kChannels,
                 first_place, min(shape.places, first_place + per_block));
}

/// The vectors of a thread's places in shared memory.
template <typename T>
struct Staged {
  const uint4* first;
  int count;

  /// Zeros beyond the thread's places.
  [[nodiscard]] __device__ Packed<T, Lane<T>::kChannels> operator()(int number) const {
    return number < count ? load_packed<T, Lane<T>::kChannels>(first + number * kSlabThreads, 0)
                          : Packed<T, Lane<T>::kChannels>{};
  }
};

/// Starts copying them into staged memory [place of a thread][thread]; wait_copies() ends it.
template <typename T>
__device__ __forceinline__ Staged<T> stage(const void* in, const Lane<T>& lane, uint4* memory) {
  uint4* const first = memory + threadIdx.x;
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(first));
  const int count = lane.num_places();
  const T* source = static_cast<const T*>(in) + lane.at(lane.begin);
#pragma unroll 4
  for (int number = 0; number < count; ++number) {
    copy_async(target + number * static_cast<int>(kSlabThreads * sizeof(uint4)), source, true);
    source += lane.rows * lane.channels;
  }
  commit_copies();
  return {first, count};
}

/// totals[moment][channel of the slab] = the sums of the whole cluster, in every block. All threads
/// call it, once; before a block ends it calls sync_cluster(), so that its sums stay readable.
template <typename T>
__device__ __forceinline__ void add_slab(const Lane<T>& lane,
                                         const float (&first)[Lane<T>::kChannels],
                                         const float (&second)[Lane<T>::kChannels],
                                         double (&totals)[2 * kMaxSlabChannels]) {
  __shared__ __align__(16) float sums[2 * kSlabThreads * Lane<T>::kChannels];
  __shared__ float part_sums[kSlabThreads];
  __shared__ double block_sums[2 * kMaxSlabChannels];
  static_assert(2 * kMaxSlabChannels <= kSlabThreads);
  share_sums<T>(lane, first, second, sums);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const int items = 2 * lane.width;  // [moment][channel]
  const int parts = kSlabThreads / items;
  if (thread < items * parts) {
    const int item = thread % items;
    const int moment = item / lane.width;
    float sum = 0.0F;
    for (int row = thread / items; row < lane.rows; row += parts) {
      sum += sums[(moment * lane.rows + row) * lane.width + item % lane.width];
    }
    part_sums[thread] = sum;
  }
  __syncthreads();
  if (thread < items) {
    double sum = 0.0;
    for (int part = 0; part < parts; ++part) {
      sum += part_sums[part * items + thread];
    }
    block_sums[thread] = sum;
  }
  sync_cluster();
  if (thread < items) {
    double sum = 0.0;
    for (int first_rank = 0; first_rank < cluster_size(); first_rank += kPortableCluster) {
      double of_ranks[kPortableCluster];  // on their way together
#pragma unroll
      for (int i = 0; i < kPortableCluster; ++i) {
        const int rank = first_rank + i;
        of_ranks[i] = rank < cluster_size() ? shared_of_rank(block_sums, rank)[thread] : 0.0;
      }
#pragma unroll
      for (int i = 0; i < kPortableCluster; ++i) {
        sum += of_ranks[i];
      }
    }
    totals[thread] = sum;
  }
  __syncthreads();
}

template <typename T, bool kSilu>
__global__ void __launch_bounds__(kSlabThreads, kSlabBlocks)
    slab_forward_kernel(const GroupNormForward call, const Slabs slabs) {
  constexpr int kChannels = Lane<T>::kChannels;
  __shared__ double totals[2 * kMaxSlabChannels];
  __shared__ __align__(16) float coefficients[2][kMaxSlabChannels];  // scale, shift
  __shared__ Terms<kMaxSlabChannels> terms;
  extern __shared__ uint4 staged[];
  const int slab = static_cast<int>(blockIdx.x) / slabs.blocks;
  const auto lane = lane_of_slab<T>(call.shape, slab, slabs.channels);
  const Staged<T> x = stage(call.x, lane, staged);
  load_terms(call, static_cast<int64_t>(slab) * slabs.channels, slabs.channels, terms);
  float sum[kChannels] = {};
  float squares[kChannels] = {};
  wait_copies<0>();
  add_moments<T>(x, lane, sum, squares);
  add_slab<T>(lane, sum, squares, totals);
  const int width = slabs.channels / slabs.groups;
  const bool keeps = call.statistics.factors != nullptr && cluster_rank() == 0;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < slabs.groups;
       group += kSlabThreads / 32) {
    const int first = group * width;
    finish_forward(call, static_cast<int64_t>(slab) * slabs.groups + group, totals + first,
                   totals + slabs.channels + first, terms, first, keeps,
                   [&](int c, float scale, float shift) {
                     coefficients[0][first + c] = scale;
                     coefficients[1][first + c] = shift;
                   });
  }
  __syncthreads();
  float scale[kChannels];
  float shift[kChannels];
  load_floats<float, kChannels>(coefficients[0], lane.column, kChannels, true, scale);
  load_floats<float, kChannels>(coefficients[1], lane.column, kChannels, true, shift);
  write_affine<T, kSilu>(x, lane, scale, shift, static_cast<T*>(call.y));
  sync_cluster();
}

template <typename T, bool kSilu>
__global__ void __launch_bounds__(kSlabThreads, kSlabBlocks)
    slab_backward_kernel(const GroupNormBackward call, const Slabs slabs, BatchSums batch_sums) {
  constexpr int kChannels = Lane<T>::kChannels;
  __shared__ double totals[2 * kMaxSlabChannels];
  __shared__ __align__(16) float coefficients[2][kMaxSlabChannels];  // level, slope
  __shared__ float factors[3][kMaxSlabChannels];
  extern __shared__ uint4 staged[];
  const int slab = static_cast<int>(blockIdx.x) / slabs.blocks;
  const auto lane = lane_of_slab<T>(call.shape, slab, slabs.channels);
  const Staged<T> x = stage(call.x, lane, staged);
  const Staged<T> dy = stage(call.dy, lane, staged + slabs.places * kSlabThreads);
  const int64_t first_group = static_cast<int64_t>(slab) * slabs.groups;
  if (threadIdx.x < slabs.channels) {
    const GroupFactors kept = factors_of(call, first_group);
    factors[0][threadIdx.x] = kept.scale[threadIdx.x];
    factors[1][threadIdx.x] = kept.centre[threadIdx.x];
    factors[2][threadIdx.x] = kept.excess[threadIdx.x];
  }
  float a[kChannels] = {};
  float d[kChannels] = {};
  wait_copies<0>();
  add_gradients<T, kSilu>(call, lane, x, dy, a, d);
  add_slab<T>(lane, a, d, totals);
  const int width = slabs.channels / slabs.groups;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < slabs.groups;
       group += kSlabThreads / 32) {
    const int first = group * width;
    const double rstd = call.statistics.rstd[blockIdx.y * call.shape.groups + first_group + group];
    finish_backward(call, first_group + group, totals + first, totals + slabs.channels + first,
                    {factors[0] + first, factors[1] + first, factors[2] + first, rstd}, batch_sums,
                    cluster_rank() == 0, [&](int c, float level, float slope) {
                      coefficients[0][first + c] = level;
                      coefficients[1][first + c] = slope;
                    });
  }
  __syncthreads();
  if (call.dx != nullptr) {
    float level[kChannels];
    float slope[kChannels];
    load_floats<float, kChannels>(coefficients[0], lane.column, kChannels, true, level);
    load_floats<float, kChannels>(coefficients[1], lane.column, kChannels, true, slope);
    write_gradients<T, kSilu>(call, lane, x, dy, level, slope);
  }
  sync_cluster();
}

/// totals[moment][channel] = the sums of the ranges of places of a group's channels, partial
/// [2, batch, ranges, channels]. Of a block of kGroupThreads.
__device__ __forceinline__ void add_ranges(const GroupNormShape& shape, const float* partial,
                                           int64_t ranges, double (&totals)[2][kGroupThreads]) {
  const int width = static_cast<int>(shape.channels / shape.groups);
  const int rows = kGroupThreads / width;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / width;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * width + thread % width;
  if (row < rows) {
    const float* first = partial + blockIdx.y * ranges * shape.channels + channel;
    const float* second = first + shape.batch * ranges * shape.channels;
    double sum[2] = {};
#pragma unroll 4
    for (int64_t range = row; range < ranges; range += rows) {
      sum[0] += first[range * shape.channels];
      sum[1] += second[range * shape.channels];
    }
    totals[0][thread] = sum[0];
    totals[1][thread] = sum[1];
  }
  for (int left = rows; left > 1;) {
    const int half = (left + 1) / 2;
    __syncthreads();
    if (row < left - half) {
      totals[0][thread] += totals[0][thread + half * width];
      totals[1][thread] += totals[1][thread + half * width];
    }
    left = half;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kGroupThreads)
    forward_group_kernel(const GroupNormForward call, const float* __restrict__ partial,
                         int64_t ranges) {
  __shared__ double totals[2][kGroupThreads];
  __shared__ Terms<kMaxGroupChannels> terms;
  const int width = static_cast<int>(call.shape.channels / call.shape.groups);
  load_terms(call, static_cast<int64_t>(blockIdx.x) * width, width, terms);
  add_ranges(call.shape, partial, ranges, totals);
  if (threadIdx.x < 32) {
    finish_forward(call, blockIdx.x, totals[0], totals[1], terms, 0, /*keeps=*/true,
                   [](int /*c*/, float /*scale*/, float /*shift*/) {});
  }
}

/// @param coefficients  level and slope, [2, batch, channels]
__global__ void __launch_bounds__(kGroupThreads)
    backward_group_kernel(const GroupNormBackward call, const float* __restrict__ partial,
                          int64_t ranges, BatchSums batch_sums, float* coefficients) {
  __shared__ double totals[2][kGroupThreads];
  add_ranges(call.shape, partial, ranges, totals);
  if (threadIdx.x < 32) {
    const int64_t width = call.shape.channels / call.shape.groups;
    float* target = coefficients + blockIdx.y * call.shape.channels + blockIdx.x * width;
    finish_backward(call, blockIdx.x, totals[0], totals[1], factors_of(call, blockIdx.x),
                    batch_sums, /*keeps=*/true, [&](int c, float level, float slope) {
                      target[c] = level;
                      target[call.shape.batch * call.shape.channels + c] = slope;
                    });
  }
}

template <typename T, bool kSilu>
__global__ void __launch_bounds__(kChannelThreads)
    gradient_sums_kernel(const GroupNormBackward call, int width, int64_t places_per_block,
                         float* __restrict__ partial) {
  const auto lane =
      Lane<T>::of_grid(call.shape.places, call.shape.channels, width, places_per_block);
  float a[Lane<T>::kChannels] = {};
  float d[Lane<T>::kChannels] = {};
  add_gradients<T, kSilu>(call, lane, InMemory<T>{static_cast<const T*>(call.x), lane},
                          InMemory<T>{static_cast<const T*>(call.dy), lane}, a, d);
  write_partial<T>(lane, a, d, partial);
}

template <typename T, bool kSilu>
__global__ void __launch_bounds__(kChannelThreads)
    gradient_kernel(const GroupNormBackward call, int width, int64_t places_per_block,
                    const float* __restrict__ coefficients) {
  constexpr int kChannels = Lane<T>::kChannels;
  const auto lane =
      Lane<T>::of_grid(call.shape.places, call.shape.channels, width, places_per_block);
  const int64_t first = blockIdx.y * call.shape.channels + lane.channel();
  const int64_t stride = call.shape.batch * call.shape.channels;
  float level[kChannels];
  float slope[kChannels];
  load_floats<float, kChannels>(coefficients, first, kChannels, true, level);
  load_floats<float, kChannels>(coefficients, stride + first, kChannels, true, slope);
  write_gradients<T, kSilu>(call, lane, InMemory<T>{static_cast<const T*>(call.x), lane},
                            InMemory<T>{static_cast<const T*>(call.dy), lane}, level, slope);
}

/// Over images. y: which gradient.
__global__ void __launch_bounds__(kBatchThreads)
    add_batch_kernel(const GroupNormBackward call, const float* __restrict__ batch_sums) {
  const ChannelGradient& target = blockIdx.y == 0   ? call.dweight
                                  : blockIdx.y == 1 ? call.dbias
                                                    : call.dchannel_bias;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kBatchThreads + threadIdx.x;
  if (target.data == nullptr || channel >= call.shape.channels) {
    return;
  }
  double sum = 0.0;
#pragma unroll 8
  for (int64_t b = 0; b < call.shape.batch; ++b) {
    sum += batch_sums[(blockIdx.y * call.shape.batch + b) * call.shape.channels + channel];
  }
  store(target, channel, sum);
}

/// What the GPU allows.
struct SlabLimits {
  int cluster = 1;  // blocks
  int64_t staged_bytes = 0;
};

SlabLimits slab_limits() {
  int device = 0;
  int shared = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess) {
    return {};
  }
  const int capability = kernel_capability();
  return {capability < 90    ? 1
          : capability == 90 ? kMaxCluster
                             : kPortableCluster,
          std::min(kMaxStagedBytes, int64_t{shared} - kOtherSharedBytes)};
}

constexpr int kForwardArrays = 1;   // x
constexpr int kBackwardArrays = 2;  // x, dy

/// arrays: of x's shape, that are staged.
Slabs slabs_of(const GroupNormShape& shape, int arrays) {
  Slabs slabs;
  for (int64_t groups = 1; groups <= shape.groups; ++groups) {
    const int64_t channels = groups * shape.group_channels();
    if (channels > kMaxSlabChannels) {
      break;
    }
    if (shape.groups % groups == 0 && channels % (shape.type == DType::kF32 ? 4 : 8) == 0) {
      slabs.groups = static_cast<int>(groups);
      slabs.channels = static_cast<int>(channels);
      if (vectors_of(channels, shape.type) * kVectorBytes >= kMinSlabBytes) {
        break;
      }
    }
  }
  if (slabs.groups == 0) {
    return {};
  }
  const SlabLimits limits = slab_limits();
  const int64_t vectors = vectors_of(slabs.channels, shape.type);
  const auto places_of_thread = [&](int64_t blocks) {
    return ceil_div(ceil_div(shape.places, blocks), kSlabThreads / vectors);
  };
  const auto staged_bytes = [&](int64_t blocks) {
    return arrays * places_of_thread(blocks) * kSlabThreads * kVectorBytes;
  };
  const int64_t bytes = shape.places * vectors * kVectorBytes;
  while (slabs.blocks < std::min(limits.cluster, kPortableCluster) &&
         bytes > slabs.blocks * kBlockBytes) {
    slabs.blocks *= 2;
  }
  while (slabs.blocks < limits.cluster && staged_bytes(slabs.blocks) > limits.staged_bytes) {
    slabs.blocks *= 2;
  }
  if (staged_bytes(slabs.blocks) > limits.staged_bytes) {
    return {};
  }
  slabs.places = static_cast<int>(places_of_thread(slabs.blocks));
  slabs.staged_bytes = static_cast<size_t>(staged_bytes(slabs.blocks));
  return slabs;
}

/// A launch of a kernel whose clusters take slabs.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_slabs(void (*kernel)(Parameters...), const GroupNormShape& shape,
                         const Slabs& slabs, cudaStream_t stream, const Arguments&... arguments) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(slabs.staged_bytes));
  if (error == cudaSuccess && slabs.blocks > kPortableCluster) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(slabs.blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.groups / slabs.groups * slabs.blocks),
                        static_cast<unsigned>(shape.batch));
  config.blockDim = dim3(kSlabThreads);
  config.dynamicSmemBytes = slabs.staged_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = slabs.blocks > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

ChannelGrid grid_of(const GroupNormShape& shape) {
  return ChannelGrid(shape.batch, shape.places, vectors_of(shape.channels, shape.type));
}

bool is_empty(const GroupNormShape& shape) {
  return shape.batch == 0 || shape.places == 0;
}

int64_t partial_floats(const GroupNormShape& shape) {
  return 2 * shape.batch * grid_of(shape).blocks.x * shape.channels;
}

bool wants_batch_sums(const GroupNormBackward& call) {
  return call.dweight.data != nullptr || call.dbias.data != nullptr ||
         call.dchannel_bias.data != nullptr;
}

}  // namespace

bool group_norm_takes(const GroupNormShape& shape) {
  return shape.groups > 0 && shape.channels % shape.groups == 0 &&
         channel_norm_takes(shape.channels, shape.type) &&
         shape.group_channels() <= kMaxGroupChannels && shape.batch <= kMaxBatch;
}

size_t group_norm_forward_workspace_bytes(const GroupNormForward& call) {
  const GroupNormShape& shape = call.shape;
  if (is_empty(shape) || slabs_of(shape, kForwardArrays).groups > 0) {
    return 0;
  }
  const int64_t statistics =
      call.statistics.factors == nullptr ? shape.batch * (4 * shape.channels + shape.groups) : 0;
  return static_cast<size_t>(partial_floats(shape) + statistics) * sizeof(float);
}

cudaError_t group_norm_forward(const GroupNormForward& call, void* workspace, cudaStream_t stream) {
  const GroupNormShape& shape = call.shape;
  if (!group_norm_takes(shape) || !is_aligned_to<16>(call.x) || !is_aligned_to<16>(call.y) ||
      !is_aligned_to<16>(call.statistics.factors)) {
    return cudaErrorInvalidValue;
  }
  if (is_empty(shape)) {
    return cudaSuccess;
  }
  if (const Slabs slabs = slabs_of(shape, kForwardArrays); slabs.groups > 0) {
    return with_type(shape.type, [&](auto example) {
      using T = decltype(example);
      return launch_slabs(call.silu ? slab_forward_kernel<T, true> : slab_forward_kernel<T, false>,
                          shape, slabs, stream, call, slabs);
    });
  }
  auto* partial = static_cast<float*>(workspace);
  GroupNormForward kept = call;
  if (kept.statistics.factors == nullptr) {
    kept.statistics.factors = partial + partial_floats(shape);
    kept.statistics.rstd = kept.statistics.factors + 4 * shape.batch * shape.channels;
  }
  const ChannelGrid grid = grid_of(shape);
  if (const cudaError_t error = partial_moments({.batch = shape.batch,
                                                 .places = shape.places,
                                                 .channels = shape.channels,
                                                 .type = shape.type,
                                                 .in = call.x},
                                                grid, partial, stream);
      error != cudaSuccess) {
    return error;
  }
  forward_group_kernel<<<dim3(static_cast<unsigned>(shape.groups),
                              static_cast<unsigned>(shape.batch)),
                         kGroupThreads, 0, stream>>>(kept, partial, grid.blocks.x);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    return error;
  }
  return channel_affine({.batch = shape.batch,
                         .places = shape.places,
                         .channels = shape.channels,
                         .type = shape.type,
                         .in = call.x,
                         .scale = kept.statistics.factors,
                         .shift = kept.statistics.factors + shape.batch * shape.channels,
                         .silu = call.silu,
                         .out = call.y},
                        stream);
}

size_t group_norm_backward_workspace_bytes(const GroupNormBackward& call) {
  const GroupNormShape& shape = call.shape;
  if (is_empty(shape)) {
    return 0;
  }
  const int64_t values = shape.batch * shape.channels;
  const int64_t batch_sums = wants_batch_sums(call) ? 3 * values : 0;
  const int64_t rest =
      slabs_of(shape, kBackwardArrays).groups > 0 ? 0 : partial_floats(shape) + 2 * values;
  return static_cast<size_t>(batch_sums + rest) * sizeof(float);
}

cudaError_t group_norm_backward(const GroupNormBackward& call, void* workspace,
                                cudaStream_t stream) {
  const GroupNormShape& shape = call.shape;
  if (!group_norm_takes(shape) || !is_aligned_to<16>(call.x) || !is_aligned_to<16>(call.dy) ||
      !is_aligned_to<16>(call.dx) || !is_aligned_to<16>(call.statistics.factors)) {
    return cudaErrorInvalidValue;
  }
  if (is_empty(shape)) {
    return cudaSuccess;
  }
  const int64_t values = shape.batch * shape.channels;
  auto* rest = static_cast<float*>(workspace);
  BatchSums batch_sums = nullptr;
  if (wants_batch_sums(call)) {
    batch_sums = rest;
    rest += 3 * values;
  }
  const cudaError_t error = with_type(shape.type, [&](auto example) {
    using T = decltype(example);
    if (const Slabs slabs = slabs_of(shape, kBackwardArrays); slabs.groups > 0) {
      return launch_slabs(
          call.silu ? slab_backward_kernel<T, true> : slab_backward_kernel<T, false>, shape, slabs,
          stream, call, slabs, batch_sums);
    }
    const ChannelGrid grid = grid_of(shape);
    float* coefficients = rest;
    float* partial = rest + 2 * values;
    const auto sums = call.silu ? gradient_sums_kernel<T, true> : gradient_sums_kernel<T, false>;
    sums<<<grid.blocks, kChannelThreads, 0, stream>>>(call, grid.width, grid.places_per_block,
                                                      partial);
    if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) {
      return failed;
    }
    backward_group_kernel<<<dim3(static_cast<unsigned>(shape.groups),
                                 static_cast<unsigned>(shape.batch)),
                            kGroupThreads, 0, stream>>>(call, partial, grid.blocks.x, batch_sums,
                                                        coefficients);
    if (const cudaError_t failed = cudaGetLastError();
        failed != cudaSuccess || call.dx == nullptr) {
      return failed;
    }
    const auto gradient = call.silu ? gradient_kernel<T, true> : gradient_kernel<T, false>;
    gradient<<<grid.blocks, kChannelThreads, 0, stream>>>(call, grid.width, grid.places_per_block,
                                                          coefficients);
    return cudaGetLastError();
  });
  if (error != cudaSuccess || batch_sums == nullptr) {
    return error;
  }
  add_batch_kernel<<<dim3(static_cast<unsigned>(ceil_div(shape.channels, kBatchThreads)), 3),
                     kBatchThreads, 0, stream>>>(call, batch_sums);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
