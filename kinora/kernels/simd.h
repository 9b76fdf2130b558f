#pragma once

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>

#include "kinora/kernels/instruction_set.h"

/// Runs one loop body compiled for several instruction sets, whichever this machine has: the
/// program must also run elsewhere, so -march=native is out. Not target_clones, whose resolvers run
/// before sanitizers are up. No body uses fused multiply-adds (-ffp-contract=off), so that every
/// variant gives the same bits.
namespace kinora::kernels {

#if defined(__x86_64__)

template <typename Body, typename... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void run_avx512(const Args&... args) {
  Body::run(args...);
}

template <typename Body, typename... Args>
[[gnu::target("avx2")]] void run_avx2(const Args&... args) {
  Body::run(args...);
}

#endif

/// Body::run(args...), which must be [[gnu::always_inline]] to take on the instruction set, by one
/// that this CPU has.
template <typename Body, typename... Args>
void run_simd_by(InstructionSet set, const Args&... args) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) {
    return run_avx512<Body>(args...);
  }
  if (set == InstructionSet::kAvx2) {
    return run_avx2<Body>(args...);
  }
#endif
  Body::run(args...);
}

/// By the best.
template <typename Body, typename... Args>
void run_simd(const Args&... args) {
  run_simd_by<Body>(best_instruction_set(), args...);
}

/// Copies from a cache to what is not read soon, without reading the lines of memory that it fills.
/// Others see it after finish_streaming.
[[gnu::always_inline]] inline void stream(const uint16_t* in, int64_t count, uint16_t* out) {
  int64_t i = 0;
#if defined(__x86_64__)
  constexpr int64_t kWidth = 8;
  if (reinterpret_cast<uintptr_t>(out) % (kWidth * sizeof(uint16_t)) == 0) {
    for (; i + kWidth <= count; i += kWidth) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    }
  }
#endif
  std::copy(in + i, in + count, out + i);
}

inline void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace kinora::kernels
