#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Whether a shape is one of a matrix [shape[0], the rest]: no vector in several dims.
[[nodiscard]] bool is_matrix(at::IntArrayRef shape);
/// What Muon takes for a matrix: of the weights between embedders and the last layer, which are
/// fp32 islands, those that are no vectors. A convolution is one of [out, the rest].
[[nodiscard]] bool is_matrix(const nn::Parameter& parameter);

/// Multiply-accumulates of one step's orthogonalise, all ranks together.
[[nodiscard]] double orthogonalise_macs(const std::vector<nn::NamedParameter>& parameters);

/// Between the two passes of Muon's update: makes the directions orthogonal that matrices have in
/// place of gradients, times 0.2 sqrt(max(rows, columns)), so that their elements are as large as
/// AdamW's steps. Where state is divided, ranks gather the directions of few buckets at a time,
/// each works on its share of the matrices, and everyone gets what belongs to its slices: the same
/// bits whatever the number of ranks. All ranks call it; waits for nothing on a GPU.
void orthogonalise(const Arena& arena);

}  // namespace kinora::optim
