#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kinora/core/host_device.h"

/// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011), the same bits on CPU and GPU, also after the transform to normals: that uses
/// only correctly rounded additions, multiplications and square roots, never fused or library ones.
namespace kinora {

/// What a random number is for. The values are part of the checkpoint format: never renumber.
enum class RandomPurpose : uint8_t {
  kInit = 1,             ///< initial parameter values; sample = hash of the parameter's name
  kNoise = 2,            ///< x_t's noise in training
  kTimestep = 3,         ///< t in training
  kLabelDropout = 4,     ///< whether a label becomes the null class
  kDataOrder = 5,        ///< order of an epoch; sample = epoch
  kAugment = 6,          ///< flips and crops
  kInitialNoise = 7,     ///< x_T of a sampler; sample = image index
  kSamplerNoise = 8,     ///< noise added by a sampler at its step
  kGenerate = 9,         ///< the built-in generated data; sample = its index
  kValidation = 10,      ///< t and noise of the fixed validation set
  kFrameMask = 11,       ///< which frames of a clip training gives
  kLatent = 12,          ///< of the latents that an autoencoder's mean and deviation describe
  kBucket = 13,          ///< which bucket takes a sample; sample = its index, step = epoch
  kNoiseOffset = 14,     ///< what training adds to all noise of a channel
  kPyramidNoise = 15,    ///< the coarse levels of training's noise
  kMask = 16,            ///< the parts of pictures that a U-Net learns to fill in
  kWeightRounding = 17,  ///< of weights kept in bf16; sample = hash of the parameter's name
  kTest = 255,
};

/// Names one stream of random numbers. Elements count in the whole, unsharded sample in C order.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t sample = 0;  ///< only the low 56 bits count
  uint32_t step = 0;
  RandomPurpose purpose = RandomPurpose::kTest;
};

struct PhiloxBlock {
  uint32_t word[4];
};

namespace philox_detail {

KINORA_HOST_DEVICE inline float mul(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

KINORA_HOST_DEVICE inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

KINORA_HOST_DEVICE inline float square_root(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

/// log(x) for normal x in (0, 1]; the polynomial of Cephes' logf, error below 1 ulp or so.
KINORA_HOST_DEVICE inline float log_unit(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 23) - 126;
  bits = (bits & 0x007fffffU) | 0x3f000000U;  // mantissa in [0.5, 1)
  float mantissa;
  memcpy(&mantissa, &bits, sizeof(mantissa));
  const bool small = mantissa < 0.707106781186547524F;
  exponent -= small ? 1 : 0;
  const float m = add(small ? add(mantissa, mantissa) : mantissa, -1.0F);
  const float z = mul(m, m);
  float y = 7.0376836292e-2F;
  y = add(mul(y, m), -1.1514610310e-1F);
  y = add(mul(y, m), 1.1676998740e-1F);
  y = add(mul(y, m), -1.2420140846e-1F);
  y = add(mul(y, m), 1.4249322787e-1F);
  y = add(mul(y, m), -1.6668057665e-1F);
  y = add(mul(y, m), 2.0000714765e-1F);
  y = add(mul(y, m), -2.4999993993e-1F);
  y = add(mul(y, m), 3.3333331174e-1F);
  y = mul(mul(y, m), z);
  const float e = static_cast<float>(exponent);
  y = add(y, mul(e, -2.12194440e-4F));
  y = add(y, mul(-0.5F, z));
  return add(add(m, y), mul(e, 0.693359375F));
}

/// sin and cos of 2 pi turns, turns in [0, 1); Cephes' sinf and cosf on [-pi/4, pi/4].
KINORA_HOST_DEVICE inline void sin_cos_turns(float turns, float* sine, float* cosine) {
  const float quarters = mul(turns, 4.0F);
  const int quadrant = static_cast<int>(add(quarters, 0.5F));
  const float r = add(quarters, -static_cast<float>(quadrant));  // exact, [-0.5, 0.5]
  const float x = mul(r, 1.57079632679489662F);
  const float z = mul(x, x);
  float s = -1.9515295891e-4F;
  s = add(mul(s, z), 8.3321608736e-3F);
  s = add(mul(s, z), -1.6666654611e-1F);
  s = add(mul(mul(s, z), x), x);
  float c = 2.443315711809948e-5F;
  c = add(mul(c, z), -1.388731625493765e-3F);
  c = add(mul(c, z), 4.166664568298827e-2F);
  c = add(add(mul(mul(c, z), z), mul(-0.5F, z)), 1.0F);
  // Selects, not branches: loops over this become vector code.
  const float a = (quadrant & 1) != 0 ? c : s;
  const float b = (quadrant & 1) != 0 ? s : c;
  *sine = (quadrant & 2) != 0 ? -a : a;
  *cosine = ((quadrant + 1) & 2) != 0 ? -b : b;
}

}  // namespace philox_detail

/// The four words of elements 4 * block ... 4 * block + 3 of `stream`.
KINORA_HOST_DEVICE inline PhiloxBlock philox(const RandomStream& stream, uint32_t block) {
  uint32_t c0 = block;
  uint32_t c1 = static_cast<uint32_t>(stream.sample);
  uint32_t c2 = stream.step;
  uint32_t c3 = (static_cast<uint32_t>(stream.purpose) << 24) |
                (static_cast<uint32_t>(stream.sample >> 32) & 0x00ffffffU);
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53U) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57U) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in the open interval (0, 1), symmetric about 0.5: 23 bits, so that (n + 0.5) is exact.
KINORA_HOST_DEVICE inline float philox_uniform(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5F) * 0x1p-23F;
}

/// Four standard normals from one block (Box and Muller 1958: words 0, 1 and words 2, 3 are pairs).
KINORA_HOST_DEVICE inline void philox_normal(const PhiloxBlock& block, float out[4]) {
  for (int i = 0; i < 4; i += 2) {
    const float u = philox_uniform(block.word[i]);
    const float turns = static_cast<float>(block.word[i + 1] >> 8) * 0x1p-24F;
    const float radius =
        philox_detail::square_root(philox_detail::mul(-2.0F, philox_detail::log_unit(u)));
    float sine;
    float cosine;
    philox_detail::sin_cos_turns(turns, &sine, &cosine);
    out[i] = philox_detail::mul(radius, cosine);
    out[i + 1] = philox_detail::mul(radius, sine);
  }
}

/// One uniform number in (0, 1): element `element` of `stream`.
KINORA_HOST_DEVICE inline float random_uniform(const RandomStream& stream, uint64_t element) {
  const PhiloxBlock block = philox(stream, static_cast<uint32_t>(element / 4));
  return philox_uniform(block.word[element % 4]);
}

/// One integer in [0, bound), bound > 0: element `element` of `stream`; by multiplication, whose
/// bias is below bound / 2^32.
KINORA_HOST_DEVICE inline uint32_t random_index(const RandomStream& stream, uint64_t element,
                                                uint32_t bound) {
  const PhiloxBlock block = philox(stream, static_cast<uint32_t>(element / 4));
  return static_cast<uint32_t>((static_cast<uint64_t>(block.word[element % 4]) * bound) >> 32);
}

/// 56-bit FNV-1a hash: the sample number of a parameter's name.
inline uint64_t random_name(const char* name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (; *name != '\0'; ++name) {
    hash = (hash ^ static_cast<uint8_t>(*name)) * 0x100000001b3ULL;
  }
  return (hash ^ (hash >> 56)) & 0x00ffffffffffffffULL;
}

}  // namespace kinora
