#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Between the two passes of Prodigy's update, before ops::adapt_distance: adds up what the first
/// pass left of all elements, into ops::distance_sums_of(control). Where state is divided, ranks
/// add up the sums of their slices. All ranks call it; waits for nothing on a GPU.
void sum_distance(const Arena& arena, const at::Tensor& control);

}  // namespace kinora::optim
