#pragma once

#include <cstdint>

/// What a CPU can compute with: loops are compiled for each (simd.h), and give the same bits.
namespace kinora::kernels {

enum class InstructionSet : uint8_t { kBase, kAvx2, kAvx512 };  ///< each has those before it

/// The last that this CPU has.
[[nodiscard]] inline InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  static const InstructionSet kBest = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return InstructionSet::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? InstructionSet::kAvx2 : InstructionSet::kBase;
  }();
  return kBest;
#else
  return InstructionSet::kBase;
#endif
}

}  // namespace kinora::kernels
