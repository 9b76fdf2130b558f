// Sums over places by channel, and x * scale + shift by channel (then SiLU), of [B, P, C]. A block
// takes a range of places (channel_norm.cuh). The blocks' sums are rows of fp32 that a second
// kernel adds up in fp64. And a norm over the channels of a place, which a few lanes of a warp keep
// in registers between its sum and its result. Bound by memory.
#include "kinora/kernels/cuda/channel_norm.h"

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/channel_norm.cuh"

namespace kinora::kernels::cuda {
namespace {

constexpr int64_t kMaxBatch = ChannelGrid::kMaxDim;
constexpr int kFinalWarps = 32;

template <typename T>
__global__ void __launch_bounds__(kChannelThreads)
    moments_kernel(const T* __restrict__ in, int64_t places, int64_t channels, int width,
                   int64_t places_per_block, float* __restrict__ partial) {
  const auto lane = Lane<T>::of_grid(places, channels, width, places_per_block);
  float sum[Lane<T>::kChannels] = {};
  float squares[Lane<T>::kChannels] = {};
  add_moments<T>(InMemory<T>{in, lane}, lane, sum, squares);
  write_partial<T>(lane, sum, squares, partial);
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
__global__ void group_affine_kernel(const GroupAffine call) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= call.batch * call.channels) {
    return;
  }
  const int64_t channel = i % call.channels;
  const int64_t group = i / call.channels * call.groups + channel / (call.channels / call.groups);
  const auto count = static_cast<double>(call.elements);
  const double mean = call.sums[group] / count;
  const double square = call.sums[call.batch * call.groups + group] / count;
  const auto rstd = static_cast<float>(rsqrt(fmax(square - mean * mean, 0.0) + call.epsilon));
  const float scale = rstd * to_float(static_cast<const T*>(call.weight)[channel]);
  call.scale[i] = scale;
  call.shift[i] =
      to_float(static_cast<const T*>(call.bias)[channel]) - static_cast<float>(mean) * scale;
}

/// ChannelEdges, as a thread reads them.
struct EdgeSizes {
  explicit EdgeSizes(const ChannelEdges& edges) {
    for (int d = 0; d < 3; ++d) {
      before[d] = static_cast<int>(edges.before[d]);
      sizes[d] = static_cast<int>(edges.sizes[d]);
      last[d] = static_cast<int>(edges.inner(d) - 1);
      left_out[d] = static_cast<int>(edges.left_out[d][0]);
      doublings[d] = edges.doublings[d];
    }
    rows = static_cast<uint32_t>(edges.size(1));
    columns = static_cast<uint32_t>(edges.size(2));
  }

  /// The place that a place of the result repeats.
  [[nodiscard]] __device__ int64_t source(int64_t place) const {
    const auto flat = static_cast<uint32_t>(place);
    const uint32_t column = flat % columns;
    const uint32_t row = flat / columns % rows;
    const uint32_t frame = flat / columns / rows;
    return (int64_t{inside(frame, 0)} * sizes[1] + inside(row, 1)) * sizes[2] + inside(column, 2);
  }
  [[nodiscard]] __device__ int inside(uint32_t at, int d) const {
    return (min(max(static_cast<int>(at) - before[d], 0), last[d]) + left_out[d]) >> doublings[d];
  }

  int before[3];
  int sizes[3];
  int last[3];
  int left_out[3];  // at the beginning
  int doublings[3];
  uint32_t rows;     // of the result
  uint32_t columns;  // of the result
};

/// As InMemory, of the places that those of the result repeat.
template <typename T>
struct WithEdges {
  const T* in;  // of the image
  const Lane<T>& lane;
  const EdgeSizes& edges;

  [[nodiscard]] __device__ Packed<T, Lane<T>::kChannels> operator()(int number) const {
    const int64_t place = lane.begin + int64_t{number} * lane.rows;
    if (place >= lane.end) {
      return {};
    }
    return load_packed<T, Lane<T>::kChannels>(in,
                                              edges.source(place) * lane.channels + lane.channel());
  }
};

// Not __restrict__: out may be in.
template <typename T, bool kSilu, bool kEdges>
__global__ void __launch_bounds__(kChannelThreads)
    affine_kernel(const T* in, const float* __restrict__ scale, const float* __restrict__ shift,
                  int64_t places, int64_t channels, int width, int64_t places_per_block, T* out,
                  int64_t places_in, EdgeSizes edges) {
  constexpr int kChannels = Lane<T>::kChannels;
  const auto lane = Lane<T>::of_grid(places, channels, width, places_per_block);
  float factor[kChannels];
  float term[kChannels];
  const int64_t first = blockIdx.y * channels + lane.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    factor[c] = scale[first + c];
    term[c] = shift[first + c];
  }
  if constexpr (kEdges) {
    const T* const image = in + static_cast<int64_t>(blockIdx.y) * places_in * channels;
    write_affine<T, kSilu>(WithEdges<T>{image, lane, edges}, lane, factor, term, out);
  } else {
    write_affine<T, kSilu>(InMemory<T>{in, lane}, lane, factor, term, out);
  }
}

template <typename T>
__global__ void __launch_bounds__(kChannelThreads)
    repeat_kernel(const T* __restrict__ in, int64_t places, int64_t channels, int width,
                  int64_t places_per_block, T* __restrict__ out, int64_t places_in,
                  EdgeSizes edges) {
  constexpr int kChannels = Lane<T>::kChannels;
  const auto lane = Lane<T>::of_grid(places, channels, width, places_per_block);
  const T* const image = in + static_cast<int64_t>(blockIdx.y) * places_in * channels;
  const WithEdges<T> vectors{image, lane, edges};
  const int count = lane.num_places();
  for (int first = 0; first < count; first += kPlacesUnroll) {
    Packed<T, kChannels> packed[kPlacesUnroll];
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      packed[i] = vectors(first + i);
    }
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      const int64_t place = lane.begin + int64_t{first + i} * lane.rows;
      if (place < lane.end) {
        *reinterpret_cast<uint4*>(out + lane.at(place)) =
            make_uint4(packed[i].word[0], packed[i].word[1], packed[i].word[2], packed[i].word[3]);
      }
    }
  }
}

/// ChannelPhases, as a thread reads them.
struct PhaseSizes {
  explicit PhaseSizes(const ChannelPhases& call)
      : frames(static_cast<uint32_t>(call.frames)),
        rows(static_cast<uint32_t>(call.rows)),
        columns(static_cast<uint32_t>(call.columns)),
        times(static_cast<uint32_t>(call.times)),
        left_out(static_cast<uint32_t>(call.left_out)) {}

  /// The vector of `in`, counted in the result's vectors of channels, of a place of the result.
  [[nodiscard]] __device__ int64_t source(uint32_t place) const {
    const uint32_t column = place % (2 * columns);
    const uint32_t row = place / (2 * columns) % (2 * rows);
    const uint32_t frame = place / (2 * columns) / (2 * rows) + left_out;
    const uint32_t phase = 4 * (frame % times) + 2 * (row % 2) + column % 2;
    const int64_t from = (int64_t{frame / times} * (rows + 1) + row / 2 + row % 2) * (columns + 1) +
                         column / 2 + column % 2;
    return from * 4 * times + phase;
  }
  /// Of a clip of `in`, counted likewise.
  [[nodiscard]] __device__ int64_t all() const {
    return int64_t{frames} * (rows + 1) * (columns + 1) * 4 * times;
  }

  uint32_t frames;
  uint32_t rows;
  uint32_t columns;
  uint32_t times;
  uint32_t left_out;
};

template <typename T>
__global__ void __launch_bounds__(kChannelThreads)
    phases_kernel(const T* __restrict__ in, const T* __restrict__ bias, int64_t places,
                  int64_t channels, int width, int64_t places_per_block, T* __restrict__ out,
                  PhaseSizes sizes) {
  constexpr int kChannels = Lane<T>::kChannels;
  const auto lane = Lane<T>::of_grid(places, channels, width, places_per_block);
  float term[kChannels] = {};
  if (bias != nullptr) {
    load_floats<T, kChannels>(bias, lane.channel(), kChannels, true, term);
  }
  const T* const clip = in + static_cast<int64_t>(blockIdx.y) * sizes.all() * channels;
  const int count = lane.num_places();
  for (int first = 0; first < count; first += kPlacesUnroll) {
    Packed<T, kChannels> packed[kPlacesUnroll];
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      const int64_t place = lane.begin + int64_t{first + i} * lane.rows;
      packed[i] =
          place < lane.end
              ? load_packed<T, kChannels>(
                    clip, sizes.source(static_cast<uint32_t>(place)) * channels + lane.channel())
              : Packed<T, kChannels>{};
    }
#pragma unroll
    for (int i = 0; i < kPlacesUnroll; ++i) {
      const int64_t place = lane.begin + int64_t{first + i} * lane.rows;
      float values[kChannels];
      unpack<T, kChannels>(packed[i], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        values[c] += term[c];
      }
      if (place < lane.end) {
        store_floats<T, kChannels>(out, lane.at(place), kChannels, true, values);
      }
    }
  }
}

constexpr int kRmsVectors = 4;  // of a lane, at most
constexpr int kRmsMaxBlocks = 65535;
constexpr int kWarp = 32;

/// `lanes`, a power of two of at most a warp, share a place, `vectors` of 16 bytes.
template <typename T, bool kSilu>
__global__ void __launch_bounds__(kChannelThreads)
    rms_kernel(const T* __restrict__ in, const float* __restrict__ weight, float factor,
               float least, int64_t places, int vectors, int lanes, int64_t out_places,
               T* __restrict__ out) {
  constexpr int kChannels = Lane<T>::kChannels;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t channels = int64_t{vectors} * kChannels;
  float weights[kRmsVectors][kChannels] = {};
#pragma unroll
  for (int v = 0; v < kRmsVectors; ++v) {
    const int vector = v * lanes + lane;
    if (vector < vectors) {
      load_floats<float, kChannels>(weight, int64_t{vector} * kChannels, kChannels, true,
                                    weights[v]);
    }
  }
  const int places_a_warp = kWarp / lanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kChannelThreads / lanes);
  const T* const image = in + static_cast<int64_t>(blockIdx.y) * places * channels;
  T* const target = out + static_cast<int64_t>(blockIdx.y) * out_places * channels;
  // All lanes of a warp go round as often, so that all meet in the shuffles.
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x) / kWarp *
                       places_a_warp;
       first < places; first += step) {
    const int64_t place = first + static_cast<int>(threadIdx.x) % kWarp / lanes;
    const bool is_there = place < places;
    Packed<T, kChannels> packed[kRmsVectors];
#pragma unroll
    for (int v = 0; v < kRmsVectors; ++v) {
      const int vector = v * lanes + lane;
      packed[v] = is_there && vector < vectors
                      ? load_packed<T, kChannels>(image, place * channels + vector * kChannels)
                      : Packed<T, kChannels>{};
    }
    float squares = 0.0F;
#pragma unroll
    for (int v = 0; v < kRmsVectors; ++v) {
      float values[kChannels];
      unpack<T, kChannels>(packed[v], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        squares += values[c] * values[c];
      }
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      squares += __shfl_xor_sync(0xffffffffU, squares, half);
    }
    const float scale = factor / fmaxf(sqrtf(squares), least);
#pragma unroll
    for (int v = 0; v < kRmsVectors; ++v) {
      const int vector = v * lanes + lane;
      if (!is_there || vector >= vectors) {
        continue;
      }
      float values[kChannels];
      unpack<T, kChannels>(packed[v], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        values[c] *= scale * weights[v][c];
        values[c] = kSilu ? silu<T>(values[c]) : values[c];
      }
      store_floats<T, kChannels>(target, place * channels + vector * kChannels, kChannels, true,
                                 values);
    }
  }
}

}  // namespace

bool channel_norm_takes(int64_t channels, DType type) {
  const bool is_known = type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
  return is_known && channels > 0 && channels <= ChannelGrid::kMaxVectors &&
         channels % (type == DType::kF32 ? 4 : 8) == 0;
}

size_t channel_moments_workspace_bytes(int64_t batch, int64_t places, int64_t channels,
                                       DType type) {
  if (batch == 0 || places == 0) {
    return 0;
  }
  const ChannelGrid grid(batch, places, vectors_of(channels, type));
  return static_cast<size_t>(2 * batch * grid.blocks.x * channels) * sizeof(float);
}

cudaError_t partial_moments(const ChannelMoments& call, const ChannelGrid& grid, float* partial,
                            cudaStream_t stream) {
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    moments_kernel<T><<<grid.blocks, kChannelThreads, 0, stream>>>(
        static_cast<const T*>(call.in), call.places, call.channels, grid.width,
        grid.places_per_block, partial);
    return cudaGetLastError();
  });
}

cudaError_t channel_moments(const ChannelMoments& call, void* workspace, cudaStream_t stream) {
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      call.batch > kMaxBatch / 2 || call.places == 0) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0) {
    return cudaSuccess;
  }
  auto* partial = static_cast<float*>(workspace);
  const ChannelGrid grid(call.batch, call.places, vectors_of(call.channels, call.type));
  if (const cudaError_t error = partial_moments(call, grid, partial, stream);
      error != cudaSuccess) {
    return error;
  }
  const dim3 sums(static_cast<unsigned>(ceil_div(call.channels, 32)),
                  static_cast<unsigned>(2 * call.batch));
  add_moments_kernel<<<sums, dim3(32, kFinalWarps), 0, stream>>>(partial, grid.blocks.x,
                                                                 call.channels, call.out);
  return cudaGetLastError();
}

cudaError_t channel_affine(const ChannelAffine& call, cudaStream_t stream) {
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out) || call.batch > kMaxBatch) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0 || call.places == 0) {
    return cudaSuccess;
  }
  const bool has_edges = !call.edges.is_empty();
  const int64_t places = has_edges ? call.edges.out_places() : call.places;
  if (has_edges && places > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  const ChannelGrid grid(call.batch, places, vectors_of(call.channels, call.type));
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    const auto plain = call.silu ? affine_kernel<T, true, false> : affine_kernel<T, false, false>;
    const auto edged = call.silu ? affine_kernel<T, true, true> : affine_kernel<T, false, true>;
    (has_edges ? edged : plain)<<<grid.blocks, kChannelThreads, 0, stream>>>(
        static_cast<const T*>(call.in), call.scale, call.shift, places, call.channels, grid.width,
        grid.places_per_block, static_cast<T*>(call.out), call.places, EdgeSizes(call.edges));
    return cudaGetLastError();
  });
}

cudaError_t channel_repeat(const ChannelRepeat& call, cudaStream_t stream) {
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out) || call.batch > kMaxBatch || call.edges.is_empty() ||
      call.edges.out_places() > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  const int64_t places = call.edges.out_places();
  if (call.batch == 0 || places == 0) {
    return cudaSuccess;
  }
  const ChannelGrid grid(call.batch, places, vectors_of(call.channels, call.type));
  const int64_t places_in = call.edges.sizes[0] * call.edges.sizes[1] * call.edges.sizes[2];
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    repeat_kernel<T><<<grid.blocks, kChannelThreads, 0, stream>>>(
        static_cast<const T*>(call.in), places, call.channels, grid.width, grid.places_per_block,
        static_cast<T*>(call.out), places_in, EdgeSizes(call.edges));
    return cudaGetLastError();
  });
}

cudaError_t channel_phases(const ChannelPhases& call, cudaStream_t stream) {
  const int64_t places = 4 * call.out_frames() * call.rows * call.columns;
  if (!channel_norm_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out) || !is_aligned_to<16>(call.bias) || call.batch > kMaxBatch ||
      call.times < 1 || call.left_out >= call.times || places > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0 || places == 0) {
    return cudaSuccess;
  }
  const ChannelGrid grid(call.batch, places, vectors_of(call.channels, call.type));
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    phases_kernel<T><<<grid.blocks, kChannelThreads, 0, stream>>>(
        static_cast<const T*>(call.in), static_cast<const T*>(call.bias), places, call.channels,
        grid.width, grid.places_per_block, static_cast<T*>(call.out), PhaseSizes(call));
    return cudaGetLastError();
  });
}

bool channel_rms_takes(int64_t channels, DType type) {
  return channel_norm_takes(channels, type) && vectors_of(channels, type) <= kWarp * kRmsVectors;
}

cudaError_t channel_rms(const ChannelRms& call, cudaStream_t stream) {
  if (!channel_rms_takes(call.channels, call.type) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out) || !is_aligned_to<16>(call.weight) || call.batch > kMaxBatch ||
      call.out_places < call.places) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0 || call.places == 0) {
    return cudaSuccess;
  }
  const auto vectors = static_cast<int>(vectors_of(call.channels, call.type));
  int lanes = 1;
  while (lanes * kRmsVectors < vectors) {
    lanes *= 2;
  }
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(
                        ceil_div(call.places, kChannelThreads / lanes), kRmsMaxBlocks)),
                    static_cast<unsigned>(call.batch));
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    const auto kernel = call.silu ? rms_kernel<T, true> : rms_kernel<T, false>;
    kernel<<<blocks, kChannelThreads, 0, stream>>>(
        static_cast<const T*>(call.in), call.weight, call.factor, call.least, call.places, vectors,
        lanes, call.out_places, static_cast<T*>(call.out));
    return cudaGetLastError();
  });
}

cudaError_t group_affine(const GroupAffine& call, cudaStream_t stream) {
  if (call.groups <= 0 || call.channels % call.groups != 0 || call.elements <= 0) {
    return cudaErrorInvalidValue;
  }
  if (call.batch == 0 || call.channels == 0) {
    return cudaSuccess;
  }
  const int64_t blocks = ceil_div(call.batch * call.channels, kChannelThreads);
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    group_affine_kernel<T><<<static_cast<unsigned>(blocks), kChannelThreads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
