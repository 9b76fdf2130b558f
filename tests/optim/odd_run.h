#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/ops/random.h"
#include "kinora/optim/arena.h"
#include "tests/optim/model.h"

namespace kinora::optim {

/// Matrices of several tiles (kernels/factored.h) and of odd sizes, vectors, and a scalar.
struct OddRun {
  explicit OddRun(const ArenaOptions& options) : arena(make_arena(options)) {}

  /// The same on every device.
  void set_gradients(uint32_t step) const {
    for (size_t i = 0; i < parameters.named().size(); ++i) {
      ops::random_fill(parameters.named()[i].parameter->grad, {3, i, step, RandomPurpose::kTest},
                       kernels::Distribution::kNormal, 0.1);
    }
  }

  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena(const ArenaOptions& options) {
    const std::vector<std::vector<int64_t>> shapes = {
        {129, 33}, {}, {130, 701}, {7}, {300, 3, 3, 1}, {1, 9}, {5, 1}, {2, 257}, {600}};
    for (const std::vector<int64_t>& shape : shapes) {
      parameters.add("p" + std::to_string(parameters.named().size()), shape);
    }
    return Arena(parameters.named(), parameters.one_bucket(), options);
  }
};

}  // namespace kinora::optim
