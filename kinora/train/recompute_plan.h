#pragma once

#include <cstdint>
#include <string>

#include "kinora/ops/block_stack.h"

namespace kinora::train {

/// What blocks compute again in backward, and where what they keep lies until then.
struct RecomputePlan {
  ops::Recompute level = ops::Recompute::kNone;  ///< of the blocks behind the first ones
  int64_t first_blocks = 0;  ///< that keep only their input: of all, or of those that do not wait
  /// So many, spread evenly over all: what they keep is the host's. No more than there are beside
  /// the first ones, unless those are all.
  int64_t offloaded_blocks = 0;

  bool operator==(const RecomputePlan&) const = default;
};

/// What train.recompute asks for: "none", "elementwise", "mlp", "block", "block:K", or
/// "block:K,elementwise" and "block:K,mlp"; "offload" or "offload:K", alone or with a comma and any
/// of these behind it. Behind "offload:K,block:J" K and J are of different blocks. kConfig.
[[nodiscard]] RecomputePlan parse_recompute(const std::string& recompute, int64_t depth);

/// Of so many blocks those that can wait at the host.
[[nodiscard]] int64_t others_of(const RecomputePlan& plan, int64_t depth);

/// The text that parse_recompute() makes `plan` of.
[[nodiscard]] std::string recompute_text(const RecomputePlan& plan, int64_t depth);

}  // namespace kinora::train
