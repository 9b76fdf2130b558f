#pragma once

#include <vector>

#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// The arena's layout without arrays: pure arithmetic.
struct ArenaLayout {
  std::vector<Bucket> buckets;
  std::vector<std::vector<nn::Parameter*>> owners;  ///< [bucket][slot]
  std::vector<FrozenBucket> frozen;
  std::vector<std::vector<nn::Parameter*>> frozen_owners;
};

/// Places every parameter, in the order of the specs. Throws kConfig unless each lies in exactly
/// one bucket and islands among islands, and something is trained; kShape for an empty or huge
/// parameter.
[[nodiscard]] ArenaLayout lay_out(const std::vector<nn::NamedParameter>& parameters,
                                  const std::vector<nn::BucketSpec>& specs);

}  // namespace kinora::optim
