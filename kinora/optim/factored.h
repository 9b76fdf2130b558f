#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/optim/arena.h"

namespace kinora::optim {

/// The first half of Adafactor's update: second moments of all parameters follow the squares of the
/// gradients (Bucket::factors, decay 1 - t^-0.8), and gradients become directions: divided by the
/// root of the second moment, which of a matrix is the product of its row's and its column's means
/// over their mean; then by what their root mean square has above 1. In the order of operations of
/// transformers.Adafactor(relative_step=False, scale_parameter=False, clip_threshold=1.0,
/// eps=(1e-30, ...)).
///
/// Where state is divided, ranks add up what their slices have of each mean. All ranks call it;
/// waits for nothing on a GPU. A step that is skipped changes no state; its directions are not
/// used.
/// @param control  of the step, prepared (ops::prepare_update)
void make_factored_directions(const Arena& arena, const at::Tensor& control);

/// Of CAME.
struct ConfidenceDecays {
  double mean = 0.9;  ///< of directions
  double squares = 0.999;
  double instability = 0.9999;
};

/// The first half of CAME's update, likewise: Adafactor's directions, with a constant decay; their
/// mean (Bucket::exp_avg) follows them; and that is the direction, of a matrix divided by the root
/// of its instability, the squares of what lies between the two (Bucket::instability). In the order
/// of operations of the authors' came_pytorch.CAME(eps=(1e-30, 1e-16), clip_threshold=1.0).
void make_confident_directions(const Arena& arena, const at::Tensor& control,
                               const ConfidenceDecays& decays);

}  // namespace kinora::optim
