#pragma once

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

/// Body::run(args...), which must be [[gnu::always_inline]] to take on the instruction set.
template <typename Body, typename... Args>
void run_simd(const Args&... args) {
#if defined(__x86_64__)
  static const bool kHasAvx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2");
  if (kHasAvx512) {
    return run_avx512<Body>(args...);
  }
  if (kHasAvx2) {
    return run_avx2<Body>(args...);
  }
#endif
  Body::run(args...);
}

}  // namespace kinora::kernels
