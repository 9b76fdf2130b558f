#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/kernels/factored.h"
#include "kinora/ops/factored_step.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// The first half of the updates of Adafactor and CAME, by our kernels: gradients become
/// directions.
///
/// Adafactor: second moments of all parameters follow the squares of the gradients
/// (Bucket::factors, decay 1 - t^-0.8), and gradients are divided by the root of the second moment,
/// which of a matrix is the product of its row's and its column's means over their mean; then by
/// what their root mean square has above 1.
///
/// CAME: likewise, with a constant decay; the mean of directions (Bucket::exp_avg) follows them;
/// and that is the direction, of a matrix divided by the root of its instability, the squares of
/// what lies between the two (Bucket::instability).
///
/// Where state is divided, ranks add up what their slices have of each mean: all of them call
/// make. It waits for nothing on a GPU. A step that is skipped changes no state; its directions
/// are not used.
class FactoredDirections {
 public:
  /// Of the arena's arrays as they lie. Copies to the device: not within a graph.
  FactoredDirections(const Arena& arena, const kernels::FactoredRule& rule);

  /// @param control  of the step, prepared (ops::prepare_update)
  void make(const at::Tensor& control) const;

 private:
  kernels::FactoredRule rule_;
  Sharding sharding_;
  ops::FactoredTable table_;
};

/// The same composed of libtorch's calls, on any device: the path of a GPU without our kernels, and
/// the oracle of tests.
void make_factored_directions_composed(const Arena& arena, const kernels::FactoredRule& rule,
                                       const at::Tensor& control);

}  // namespace kinora::optim
