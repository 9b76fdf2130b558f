#pragma once

#include <array>
#include <cstdint>

#include "kinora/parallel/sequence_plan.h"

namespace kinora::parallel {

inline constexpr std::array<SequenceScheme, kNumSequenceSchemes - 1> kSchemes = {
    SequenceScheme::kDsp, SequenceScheme::kUlysses, SequenceScheme::kFastSeq,
    SequenceScheme::kUsp, SequenceScheme::kNdRing,  SequenceScheme::kRing};

/// For a power of two of ranks: heads, and rings inside, of two.
inline SequencePlan plan_of(SequenceScheme scheme, int64_t ranks) {
  switch (scheme) {
    case SequenceScheme::kRing:
      return {scheme, 1, ranks, 1, ""};
    case SequenceScheme::kNdRing:
      return {scheme, 1, 2, ranks / 2, ""};
    case SequenceScheme::kUsp:
      return {scheme, 2, 1, ranks / 2, ""};
    default:
      return {scheme, ranks, 1, 1, ""};
  }
}

}  // namespace kinora::parallel
