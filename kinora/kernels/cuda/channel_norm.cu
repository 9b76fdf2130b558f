// Sums over places by channel, and x * scale + shift by channel (then SiLU), of [B, P, C]. A thread
// keeps to one vector of 16 bytes of channels, so its scales and sums stay in registers; the
// threads of a block take as many places at once as they can, and a block a range of places. The
// blocks' sums are rows of fp32 that a second kernel adds up in fp64. Bound by memory: four vectors
// a thread in flight.
#include <algorithm>

#include "kinora/kernels/cuda/channel_norm.h"
#include "kinora/kernels/cuda/elements.cuh"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr int64_t kTargetBlocks = 2048;  // enough for every GPU, whatever its size
constexpr int64_t kMinPlaces = 64;       // of a block
constexpr int64_t kMaxBatch = 65535;     // of a grid's second dim
constexpr int kFinalWarps = 32;
constexpr int64_t kVectorBytes = 16;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Places that a block takes.
int64_t places_per_block(int64_t batch, int64_t places) {
  const int64_t blocks = std::clamp(kTargetBlocks / std::max<int64_t>(batch, 1), int64_t{1},
                                    ceil_div(places, kMinPlaces));
  return ceil_div(places, blocks);
}

int64_t blocks_of(int64_t batch, int64_t places) {
  return ceil_div(places, places_per_block(batch, places));
}

/// A thread's vector of channels, and its places.
template <typename T>
struct Lane {
  static constexpr int kChannels = kVectorBytes / sizeof(T);

  __device__ Lane(int64_t num_places, int num_vectors, int64_t places_per_block)
      : channels(static_cast<int64_t>(num_vectors) * kChannels),
        rows(kThreads / num_vectors),
        channel(static_cast<int>(threadIdx.x) % num_vectors * kChannels),
        row(static_cast<int>(threadIdx.x) / num_vectors),
        end(min(num_places, (blockIdx.x + int64_t{1}) * places_per_block)),
        begin(row < rows ? blockIdx.x * places_per_block + row : end),
        image(static_cast<int64_t>(blockIdx.y) * num_places * channels) {}

  /// The first of the vector's elements at a place.
  [[nodiscard]] __device__ int64_t at(int64_t place) const {
    return image + place * channels + channel;
  }

  int64_t channels;
  int rows;  // places that a block takes at once
  int channel;
  int row;
  int64_t end;
  int64_t begin;  // the thread's first place; `end` for threads without a row
  int64_t image;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(const T* __restrict__ in, int64_t places, int vectors, int64_t places_per_block,
                   float* __restrict__ partial) {
  constexpr int kChannels = Lane<T>::kChannels;
  __shared__ float sums[2][kThreads * kChannels];  // [moment][row, channel]
  const Lane<T> lane(places, vectors, places_per_block);
  float sum[kChannels] = {};
  float squares[kChannels] = {};
  for (int64_t place = lane.begin; place < lane.end; place += lane.rows * kUnroll) {
    Packed<T, kChannels> packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t p = place + i * lane.rows;
      packed[i] = p < lane.end ? load_packed<T, kChannels>(in, lane.at(p))
                               : Packed<T, kChannels>{};  // zeros add nothing
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float values[kChannels];
      unpack<T, kChannels>(packed[i], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        sum[c] += values[c];
        squares[c] += values[c] * values[c];
      }
    }
  }
  if (lane.row < lane.rows) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      sums[0][lane.row * lane.channels + lane.channel + c] = sum[c];
      sums[1][lane.row * lane.channels + lane.channel + c] = squares[c];
    }
  }
  __syncthreads();
  // [moment, batch, block, channel]
  for (int64_t i = threadIdx.x; i < 2 * lane.channels; i += kThreads) {
    const int64_t moment = i / lane.channels;
    const int64_t channel = i % lane.channels;
    float total = 0.0F;
    for (int row = 0; row < lane.rows; ++row) {
      total += sums[moment][row * lane.channels + channel];
    }
    const int64_t target = (moment * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    partial[target * lane.channels + channel] = total;
  }
}

/// out[y][c] = sum over i of partial[y][i][c], y a moment of an image.
__global__ void __launch_bounds__(32 * kFinalWarps)
    add_moments_kernel(const float* __restrict__ partial, int64_t count, int64_t channels,
                       double* __restrict__ out) {
  __shared__ double sums[kFinalWarps][33];
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  double sum = 0.0;
  if (channel < channels) {
    for (int64_t i = threadIdx.y; i < count; i += kFinalWarps) {
      sum += partial[(blockIdx.y * count + i) * channels + channel];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  for (int half = kFinalWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
    }
  }
  if (threadIdx.y == 0 && channel < channels) {
    out[blockIdx.y * channels + channel] = sums[0][threadIdx.x];
  }
}

template <typename T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 4) {
    return x / (1.0F + expf(-x));
  } else {
    return __fdividef(x, 1.0F + __expf(fminf(-x, 80.0F)));  // finite: __fdividef needs it
  }
}

// Not __restrict__: out may be in. A vector is read before it is written, by one thread.
template <typename T, bool kSilu>
__global__ void __launch_bounds__(kThreads)
    affine_kernel(const T* in, const float* __restrict__ scale, const float* __restrict__ shift,
                  int64_t places, int vectors, int64_t places_per_block, T* out) {
  constexpr int kChannels = Lane<T>::kChannels;
  const Lane<T> lane(places, vectors, places_per_block);
  float factor[kChannels];
  float term[kChannels];
  const int64_t first = blockIdx.y * lane.channels + lane.channel;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    factor[c] = scale[first + c];
    term[c] = shift[first + c];
  }
  for (int64_t place = lane.begin; place < lane.end; place += lane.rows * kUnroll) {
    Packed<T, kChannels> packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t p = place + i * lane.rows;
      packed[i] = p < lane.end ? load_packed<T, kChannels>(in, lane.at(p)) : Packed<T, kChannels>{};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t p = place + i * lane.rows;
      float values[kChannels];
      unpack<T, kChannels>(packed[i], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        values[c] = values[c] * factor[c] + term[c];
        values[c] = kSilu ? silu<T>(values[c]) : values[c];
      }
      if (p < lane.end) {
        store_floats<T, kChannels>(out, lane.at(p), kChannels, true, values);
      }
    }
  }
}

/// The grid of both kernels; blocks without places are not started.
dim3 grid_of(int64_t batch, int64_t places) {
  return {static_cast<unsigned>(blocks_of(batch, places)), static_cast<unsigned>(batch)};
}

int64_t bytes_of(DType type) {
  return type == DType::kF32 ? 4 : 2;
}

}  // namespace

bool channel_norm_takes(int64_t channels, DType type) {
  const bool is_known = type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
  const int64_t bytes = channels * bytes_of(type);
  return is_known && channels > 0 && bytes % kVectorBytes == 0 && bytes / kVectorBytes <= kThreads;
}

size_t channel_moments_workspace_bytes(int64_t batch, int64_t places, int64_t channels) {
  if (batch == 0 || places == 0) {
    return 0;
  }
  return static_cast<size_t>(2 * batch * blocks_of(batch, places) * channels) * sizeof(float);
}

cudaError_t channel_moments(const ChannelMoments& call, void* workspace, cudaStream_t stream) {
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      call.batch > kMaxBatch / 2 || call.places == 0) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0) {
    return cudaSuccess;
  }
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    auto* partial = static_cast<float*>(workspace);
    const dim3 grid = grid_of(call.batch, call.places);
    moments_kernel<T>
        <<<grid, kThreads, 0, stream>>>(static_cast<const T*>(call.in), call.places,
                                        static_cast<int>(call.channels / Lane<T>::kChannels),
                                        places_per_block(call.batch, call.places), partial);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      return error;
    }
    const dim3 sums(static_cast<unsigned>(ceil_div(call.channels, 32)),
                    static_cast<unsigned>(2 * call.batch));
    add_moments_kernel<<<sums, dim3(32, kFinalWarps), 0, stream>>>(partial, grid.x, call.channels,
                                                                   call.out);
    return cudaGetLastError();
  });
}

cudaError_t channel_affine(const ChannelAffine& call, cudaStream_t stream) {
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out) || call.batch > kMaxBatch) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0 || call.places == 0) {
    return cudaSuccess;
  }
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    const auto kernel = call.silu ? affine_kernel<T, true> : affine_kernel<T, false>;
    kernel<<<grid_of(call.batch, call.places), kThreads, 0, stream>>>(
        static_cast<const T*>(call.in), call.scale, call.shift, call.places,
        static_cast<int>(call.channels / Lane<T>::kChannels),
        places_per_block(call.batch, call.places), static_cast<T*>(call.out));
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
