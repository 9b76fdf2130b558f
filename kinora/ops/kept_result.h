#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace kinora::ops {

/// What a branch of a block is, to who takes its result from an earlier pass.
enum class BranchKind : uint8_t {
  kSpace,  ///< attention within a frame, or among all tokens
  kTime,   ///< attention through time
  kText,   ///< attention to a text
  kMlp,
};
inline constexpr size_t kBranchKinds = 4;

/// The result of a branch from one pass to another.
struct KeptResult {
  /// By stream, before the gate. Of attention with an MLP beside it what the last linear reads of
  /// attention.
  std::array<at::Tensor, 2> streams{};
  bool is_reused = false;  ///< it stands for the result of this pass, which is not computed
};

}  // namespace kinora::ops
