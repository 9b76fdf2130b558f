#pragma once

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/qk_norm_rotary.h"

/// Heads of attention spread over lanes so that a lane has both elements of its rotary pairs.
/// Device code only.
namespace kinora::kernels::cuda {

constexpr int kPairs = 4;  ///< of a lane

/// Four neighbouring elements of T as they lie in memory.
template <typename T>
struct Quad {
  uint32_t word[sizeof(T)];
};

template <typename T>
__device__ __forceinline__ Quad<T> load_quad(const T* data, int count, bool whole) {
  Quad<T> quad = {};
  if (whole) {
    if constexpr (sizeof(T) == 2) {
      const uint2 words = *reinterpret_cast<const uint2*>(data);
      quad.word[0] = words.x;
      quad.word[1] = words.y;
    } else {
      const uint4 words = *reinterpret_cast<const uint4*>(data);
      quad.word[0] = words.x;
      quad.word[1] = words.y;
      quad.word[2] = words.z;
      quad.word[3] = words.w;
    }
  } else {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) {
        const uint32_t bits = reinterpret_cast<const Bits*>(data)[i];
        quad.word[i / kPerWord] |= bits << (16 * (i % kPerWord));
      }
    }
  }
  return quad;
}

template <typename T>
__device__ __forceinline__ void unpack(const Quad<T>& quad, float (&values)[4]) {
  if constexpr (sizeof(T) == 2) {
    Packed<T, 8> packed = {};
    packed.word[0] = quad.word[0];
    packed.word[1] = quad.word[1];
    float all[8];
    unpack<T, 8>(packed, all);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = all[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = __uint_as_float(quad.word[i]);
    }
  }
}

template <typename T>
__device__ __forceinline__ void store_quad(T* data, int count, bool whole,
                                           const float (&values)[4]) {
  if (whole) {
    if constexpr (sizeof(T) == 2) {
      const float all[8] = {values[0], values[1], values[2], values[3], 0.0F, 0.0F, 0.0F, 0.0F};
      const Packed<T, 8> packed = pack<T, 8>(all);
      *reinterpret_cast<uint2*>(data) = make_uint2(packed.word[0], packed.word[1]);
    } else {
      *reinterpret_cast<float4*>(data) = make_float4(values[0], values[1], values[2], values[3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) {
        data[i] = from_float<T>(values[i]);
      }
    }
  }
}

/// A lane's place in its head: pairs [first, first + count), and where their elements lie.
/// kLanes: of a head, whose elements are aligned, each lane with four pairs; 0: any.
template <bool kInterleaved, int kLanes>
struct Lane {
  int lanes;   // of a head
  int heads;   // side by side in a warp
  int head;    // of these; == heads: the lane has nothing to do
  int within;  // lane of the head
  int count;   // of pairs
  bool whole;  // four pairs, aligned

  __device__ __forceinline__ Lane(int64_t head_dim, bool aligned) {
    const int half = static_cast<int>(head_dim / 2);
    const int lane = static_cast<int>(threadIdx.x % 32);
    lanes = kLanes > 0 ? kLanes : ceil_div(half, kPairs);
    heads = 32 / lanes;
    head = lane / lanes;
    within = lane - head * lanes;
    count = head < heads ? min(kPairs, half - within * kPairs) : 0;
    whole = kLanes > 0 || (aligned && count == kPairs);
  }
  [[nodiscard]] __device__ __forceinline__ int first() const { return within * kPairs; }

  // The two groups of neighbours: their first elements in the head, and how many there are.
  [[nodiscard]] __device__ __forceinline__ int offset(int group, int half) const {
    return kInterleaved ? 2 * first() + 4 * group : first() + half * group;
  }
  [[nodiscard]] __device__ __forceinline__ int size(int group) const {
    return kInterleaved ? min(4, max(0, 2 * count - 4 * group)) : count;
  }

  /// The sum over the lanes of the head, in all of them.
  [[nodiscard]] __device__ __forceinline__ float sum(float value) const {
    if constexpr (kLanes > 0 && (kLanes & (kLanes - 1)) == 0) {
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffU, value, step);
      }
      return value;
    }
    const int first_step = lanes == 1 ? 0 : 1 << (31 - __clz(lanes - 1));
#pragma unroll(kLanes > 0 ? 5 : 1)
    for (int step = first_step; step > 0; step /= 2) {
      const float other = __shfl_down_sync(0xffffffffU, value, step);
      value += within + step < lanes ? other : 0.0F;
    }
    return __shfl_sync(0xffffffffU, value, min(head * lanes, 31));
  }
};

/// The pairs of a lane: (a[i], b[i]).
struct alignas(4 * sizeof(float)) Pairs {
  float a[kPairs];
  float b[kPairs];
};

template <typename T>
struct PackedPairs {
  Quad<T> group[2];
};

template <typename T, bool kInterleaved, int kLanes>
__device__ __forceinline__ PackedPairs<T> load_pairs(const Lane<kInterleaved, kLanes>& lane,
                                                     const T* head, int half, bool wanted) {
  PackedPairs<T> packed = {};
  if constexpr (kLanes > 0) {
    if (wanted && kInterleaved && sizeof(T) == 2) {
      const uint4 words = *reinterpret_cast<const uint4*>(head + lane.offset(0, half));
      packed = {{{{words.x, words.y}}, {{words.z, words.w}}}};
    } else if (wanted) {
      packed = {{load_quad<T>(head + lane.offset(0, half), kPairs, true),
                 load_quad<T>(head + lane.offset(1, half), kPairs, true)}};
    }
  } else {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      packed.group[group] = load_quad<T>(head + lane.offset(group, half),
                                         wanted ? lane.size(group) : 0, wanted && lane.whole);
    }
  }
  return packed;
}

template <typename T, bool kInterleaved>
__device__ __forceinline__ Pairs unpack_pairs(const PackedPairs<T>& packed) {
  float first[4];
  float second[4];
  unpack<T>(packed.group[0], first);
  unpack<T>(packed.group[1], second);
  if constexpr (kInterleaved) {
    return {{first[0], first[2], second[0], second[2]}, {first[1], first[3], second[1], second[3]}};
  } else {
    return {{first[0], first[1], first[2], first[3]}, {second[0], second[1], second[2], second[3]}};
  }
}

template <typename T, bool kInterleaved, int kLanes>
__device__ __forceinline__ void store_pairs(const Lane<kInterleaved, kLanes>& lane, T* head,
                                            int half, const Pairs& pairs) {
  const auto& a = pairs.a;
  const auto& b = pairs.b;
  if constexpr (kLanes > 0 && kInterleaved && sizeof(T) == 2) {
    const float all[8] = {a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]};
    const Packed<T, 8> packed = pack<T, 8>(all);
    *reinterpret_cast<uint4*>(head + lane.offset(0, half)) =
        make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]);
  } else if constexpr (kInterleaved) {
    const float groups[2][4] = {{a[0], b[0], a[1], b[1]}, {a[2], b[2], a[3], b[3]}};
    store_quad<T>(head + lane.offset(0, half), lane.size(0), lane.whole, groups[0]);
    store_quad<T>(head + lane.offset(1, half), lane.size(1), lane.whole, groups[1]);
  } else {
    store_quad<T>(head + lane.offset(0, half), lane.size(0), lane.whole, a);
    store_quad<T>(head + lane.offset(1, half), lane.size(1), lane.whole, b);
  }
}

/// An element of an array of kF32, kBF16 or kF16.
__device__ __forceinline__ float load_any(const void* data, DType type, int index) {
  switch (type) {
    case DType::kBF16:
      return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::kF16:
      return to_float(static_cast<const __half*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

/// What weights or biases [head_dim] have for a lane's pairs; null: `otherwise`.
template <bool kInterleaved, int kLanes>
__device__ __forceinline__ Pairs load_dims(const Lane<kInterleaved, kLanes>& lane, const void* dims,
                                           DType type, int half, float otherwise) {
  Pairs pairs;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = lane.first() + i;
    const bool wanted = dims != nullptr && i < lane.count;
    pairs.a[i] = wanted ? load_any(dims, type, kInterleaved ? 2 * pair : pair) : otherwise;
    pairs.b[i] =
        wanted ? load_any(dims, type, kInterleaved ? 2 * pair + 1 : pair + half) : otherwise;
  }
  return pairs;
}

/// Takes the head's mean off x, with kCentres.
template <bool kCentres, bool kInterleaved, int kLanes>
__device__ __forceinline__ void centre(const Lane<kInterleaved, kLanes>& lane, float inverse_dim,
                                       Pairs& x) {
  if constexpr (kCentres) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      sum += x.a[j] + x.b[j];
    }
    const float mean = lane.sum(sum) * inverse_dim;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      x.a[j] -= j < lane.count ? mean : 0.0F;
      x.b[j] -= j < lane.count ? mean : 0.0F;
    }
  }
}

/// 1 / sqrt(mean of the head's x^2 + epsilon).
template <bool kInterleaved, int kLanes>
__device__ __forceinline__ float rstd_of(const Lane<kInterleaved, kLanes>& lane, float inverse_dim,
                                         float epsilon, const Pairs& x) {
  float squares = 0.0F;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    squares += x.a[j] * x.a[j] + x.b[j] * x.b[j];
  }
  return rsqrtf(lane.sum(squares) * inverse_dim + epsilon);
}

/// Cosines (a) and sines (b) of a lane's pairs at the row's position.
template <bool kInterleaved, int kLanes>
__device__ __forceinline__ Pairs load_angles(const Lane<kInterleaved, kLanes>& lane,
                                             const QkNormRotary& rule, uint32_t row, int half) {
  Pairs pairs;
  int64_t place = 0;
  if (rule.cosine != nullptr) {
    const int64_t position = rule.position == nullptr
                                 ? row % static_cast<uint32_t>(rule.num_positions)
                                 : rule.position[row];
    place = position * half + lane.first();
    if (lane.whole) {
      *reinterpret_cast<float4*>(pairs.a) = *reinterpret_cast<const float4*>(rule.cosine + place);
      *reinterpret_cast<float4*>(pairs.b) = *reinterpret_cast<const float4*>(rule.sine + place);
      return pairs;
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const bool wanted = rule.cosine != nullptr && i < lane.count;
    pairs.a[i] = wanted ? rule.cosine[place + i] : 1.0F;
    pairs.b[i] = wanted ? rule.sine[place + i] : 0.0F;
  }
  return pairs;
}

}  // namespace kinora::kernels::cuda
