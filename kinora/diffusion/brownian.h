#pragma once

#include <vector>

#include "kinora/diffusion/solver_plan.h"

namespace kinora::diffusion {

/// The increment of a Brownian path between `from` and `to`, divided by the root of their distance:
/// a standard normal, as shares of the numbered standard normals that the path is made of (Levy's
/// construction: the end of the path, then the middle of each half, quarter, ... given its ends).
/// So a path is that of its numbers alone: whatever points a solver visits, it sees the same one.
/// from, to: different, in [0, end]; they are rounded to end / 2^24.
[[nodiscard]] std::vector<NoiseShare> brownian_increment(double from, double to, double end);

}  // namespace kinora::diffusion
