#pragma once

#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Between the two passes of LAMB's update: multiplies the direction that each parameter has in
/// place of its gradient by the norm of the parameter over that of the direction; by 1 where one of
/// them is 0. Where state is divided, ranks add up the squares of their slices. All ranks call it;
/// waits for nothing on a GPU.
void apply_trust_ratios(const Arena& arena);

}  // namespace kinora::optim
