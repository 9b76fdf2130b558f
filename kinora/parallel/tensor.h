#pragma once

#include <cstdint>

#include "kinora/comm/group.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

/// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3): each rank of a group has
/// some of the heads and of the MLP's columns of every block (nn::Cut), and all have the tokens. A
/// pair of linears, one divided by its outputs and one by its inputs, sums what ranks have made
/// once forward and once backward.
namespace kinora::parallel {

/// The ranks of `world` that have the parts of one model: `size` neighbours, as along a mesh's axis
/// `tensor`. All ranks call it. kConfig unless it divides them.
[[nodiscard]] comm::Group tensor_group(const comm::Group& world, int64_t size);

/// What of a model ranks can divide.
struct Divisible {
  int64_t units = 0;   ///< numbers of ranks that divide it divide all; 0: nothing can be
  double share = 0.0;  ///< of the model's parameters
};
[[nodiscard]] Divisible divisible(nn::Module& model);

/// Leaves this rank's part of every weight that can be divided; before parameters have memory. All
/// ranks of the group call it. kConfig where there is none, or the group does not divide their
/// units, with the numbers of ranks that do.
void divide(nn::Module& model, const comm::Group& group);

/// Sums over the ranks of `arena.options().tensor` the gradients of parameters that each uses,
/// whole, for its own part (nn::Parameter::is_partial): of a step, when other ranks' samples are in
/// them. Each rank has the same slices of these.
void add_partial_gradients(const optim::Arena& arena);

}  // namespace kinora::parallel
