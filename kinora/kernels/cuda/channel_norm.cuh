#pragma once

#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/channel_norm.h"
#include "kinora/kernels/cuda/elements.cuh"

/// What channel_norm.cu and group_norm.cu share: how [batch, places, channels] is divided among
/// threads, and the loops over it. A thread keeps to one vector of 16 bytes of channels, so its
/// factors and sums stay in registers; the threads of a block take as many places at once as they
/// can, with four vectors each in flight.
namespace kinora::kernels::cuda {

constexpr int kChannelThreads = 256;
constexpr int kPlacesUnroll = 4;
constexpr int64_t kVectorBytes = 16;

constexpr int64_t vectors_of(int64_t channels, DType type) {
  return channels * (type == DType::kF32 ? 4 : 2) / kVectorBytes;
}

/// A grid of blocks of kChannelThreads: x ranges of places, y images, z parts of the channels.
/// There are no blocks without places or channels.
struct ChannelGrid {
  static constexpr int64_t kTargetBlocks = 2048;  // enough for every GPU, whatever its size
  static constexpr int64_t kMinPlaces = 64;       // of a block
  static constexpr int64_t kMaxDim = 65535;       // of y and z
  static constexpr int64_t kMaxVectors = kMaxDim * kChannelThreads;

  /// batch, places, vectors > 0
  ChannelGrid(int64_t batch, int64_t places, int64_t vectors) : width(width_of(vectors)) {
    const int64_t parts = ceil_div(vectors, width);
    const int64_t ranges =
        std::clamp(kTargetBlocks / (batch * parts), int64_t{1}, ceil_div(places, kMinPlaces));
    places_per_block = ceil_div(places, ranges);
    blocks = dim3(static_cast<unsigned>(ceil_div(places, places_per_block)),
                  static_cast<unsigned>(batch), static_cast<unsigned>(parts));
  }

  int width;  ///< vectors of a block; its last part may have fewer
  int64_t places_per_block = 0;
  dim3 blocks;

 private:
  /// As many vectors as a block can take without many of its threads idle.
  static int width_of(int64_t vectors) {
    constexpr int kMostTried = 8;
    const int64_t fewest = ceil_div(vectors, kChannelThreads);
    int best = 0;
    int most_busy = 0;
    for (int64_t parts = fewest; parts < fewest + kMostTried; ++parts) {
      const int width = static_cast<int>(ceil_div(vectors, parts));
      const int busy = kChannelThreads / width * width;
      if (busy > most_busy) {
        best = width;
        most_busy = busy;
      }
      if (most_busy >= kChannelThreads * 15 / 16) {
        break;
      }
    }
    return best;
  }
};

/// A thread's vector of channels, and its places, of the image blockIdx.y.
template <typename T>
struct Lane {
  static constexpr int kChannels = kVectorBytes / sizeof(T);

  /// Of a block of `threads` that takes channels [first, first + vectors * kChannels) of the places
  /// [first_place, end_place). vectors <= threads.
  __device__ Lane(int threads, int64_t num_places, int64_t num_channels, int64_t first, int vectors,
                  int64_t first_place, int64_t end_place)
      : channels(num_channels),
        width(vectors * kChannels),
        rows(threads / vectors),
        row(static_cast<int>(threadIdx.x) / vectors),
        column(static_cast<int>(threadIdx.x) % vectors * kChannels),
        first_channel(first),
        end(end_place),
        begin(row < rows ? first_place + row : end),
        image(static_cast<int64_t>(blockIdx.y) * num_places * num_channels) {}

  /// Of a block of a ChannelGrid.
  static __device__ Lane of_grid(int64_t num_places, int64_t num_channels, int grid_width,
                                 int64_t places_per_block) {
    const int64_t first = static_cast<int64_t>(blockIdx.z) * grid_width;
    const int64_t first_place = static_cast<int64_t>(blockIdx.x) * places_per_block;
    return Lane(kChannelThreads, num_places, num_channels, first * kChannels,
                static_cast<int>(min(int64_t{grid_width}, num_channels / kChannels - first)),
                first_place, min(num_places, first_place + places_per_block));
  }

  /// The thread's first channel.
  [[nodiscard]] __device__ int64_t channel() const { return first_channel + column; }
  /// The first of the vector's elements at a place.
  [[nodiscard]] __device__ int64_t at(int64_t place) const {
    return image + place * channels + channel();
  }
  /// The vector at a place; zeros beyond the thread's places.
  [[nodiscard]] __device__ Packed<T, kChannels> load(const T* in, int64_t place) const {
    return place < end ? load_packed<T, kChannels>(in, at(place)) : Packed<T, kChannels>{};
  }
  [[nodiscard]] __device__ int num_places() const {
    return begin < end ? static_cast<int>(ceil_div(end - begin, rows)) : 0;
  }

  int64_t channels;       // of the tensor
  int width;              // channels of the block
  int rows;               // places that a block takes at once
  int row;                // rows or more for threads without a place
  int column;             // the thread's first channel, counted from the block's
  int64_t first_channel;  // the block's
  int64_t end;
  int64_t begin;  // the thread's first place; `end` for threads without a row
  int64_t image;
};

/// Where a thread finds the vectors of its places, by their number: memory.
template <typename T>
struct InMemory {
  const T* in;
  const Lane<T>& lane;

  /// Zeros beyond the thread's places.
  [[nodiscard]] __device__ Packed<T, Lane<T>::kChannels> operator()(int number) const {
    return lane.load(in, lane.begin + int64_t{number} * lane.rows);
  }
};

/// sum += x, squares += x^2 over the thread's places. `vectors`: as InMemory.
template <typename T, typename Vectors>
__device__ __forceinline__ void add_moments(const Vectors& vectors, const Lane<T>& lane,
                                            float (&sum)[Lane<T>::kChannels],
                                            float (&squares)[Lane<T>::kChannels]) {
  constexpr int kChannels = Lane<T>::kChannels;
  const int count = lane.num_places();
  for (int first = 0; first < count; first += kPlacesUnroll) {
    Packed<T, kChannels> packed[kPlacesUnroll];
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      packed[i] = vectors(first + i);
    }
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      float values[kChannels];
      unpack<T, kChannels>(packed[i], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        sum[c] += values[c];
        squares[c] += values[c] * values[c];
      }
    }
  }
}

/// sums[moment][row][channel of the block]: what the threads have, for all to read after a barrier.
template <typename T>
__device__ __forceinline__ void share_sums(const Lane<T>& lane,
                                           const float (&first)[Lane<T>::kChannels],
                                           const float (&second)[Lane<T>::kChannels], float* sums) {
  if (lane.row < lane.rows) {
    const int at = lane.row * lane.width + lane.column;
    store_floats<float, Lane<T>::kChannels>(sums, at, Lane<T>::kChannels, true, first);
    store_floats<float, Lane<T>::kChannels>(sums, lane.rows * lane.width + at, Lane<T>::kChannels,
                                            true, second);
  }
}

/// partial[moment][image][range of places][channel] = the sums of a ChannelGrid's block.
template <typename T>
__device__ __forceinline__ void write_partial(const Lane<T>& lane,
                                              const float (&first)[Lane<T>::kChannels],
                                              const float (&second)[Lane<T>::kChannels],
                                              float* __restrict__ partial) {
  __shared__ __align__(16) float sums[2 * kChannelThreads * Lane<T>::kChannels];
  share_sums<T>(lane, first, second, sums);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * lane.width; i += kChannelThreads) {
    const int moment = i / lane.width;
    const int channel = i % lane.width;
    float total = 0.0F;
    for (int row = 0; row < lane.rows; ++row) {
      total += sums[(moment * lane.rows + row) * lane.width + channel];
    }
    const int64_t range =
        (static_cast<int64_t>(moment) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    partial[range * lane.channels + lane.first_channel + channel] = total;
  }
}

/// 1 / (1 + exp(-x)); with the hardware's functions where T is narrower than fp32.
template <typename T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.0F / (1.0F + expf(-x));
  } else {
    return __fdividef(1.0F, 1.0F + __expf(fminf(-x, 80.0F)));  // finite: __fdividef needs it
  }
}

template <typename T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 4) {
    return x / (1.0F + expf(-x));
  } else {
    return __fdividef(x, 1.0F + __expf(fminf(-x, 80.0F)));
  }
}

/// out = f(x * factor + term) at the thread's places. out may be x: a vector is read before it is
/// written, by one thread. `vectors`: as InMemory.
template <typename T, bool kSilu, typename Vectors>
__device__ __forceinline__ void write_affine(const Vectors& vectors, const Lane<T>& lane,
                                             const float (&factor)[Lane<T>::kChannels],
                                             const float (&term)[Lane<T>::kChannels], T* out) {
  constexpr int kChannels = Lane<T>::kChannels;
  const int count = lane.num_places();
  for (int first = 0; first < count; first += kPlacesUnroll) {
    Packed<T, kChannels> packed[kPlacesUnroll];
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      packed[i] = vectors(first + i);
    }
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      const int64_t p = lane.begin + int64_t{first + i} * lane.rows;
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

/// The first half of channel_moments: fp32 sums of each range of places,
/// [2, batch, grid.blocks.x, channels].
[[nodiscard]] cudaError_t partial_moments(const ChannelMoments& call, const ChannelGrid& grid,
                                          float* partial, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
