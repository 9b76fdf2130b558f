#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "kinora/inference/recipe.h"
#include "kinora/optim/arena.h"

/// Draws in less memory than the GPU has, or than the model needs.
namespace kinora::inference {

/// What drawing takes of a GPU, in bytes: found out by a dry run, without one.
struct DrawingMemory {
  int64_t weights = 0;  ///< on the GPU, with the rooms of those that it does not hold
  int64_t at_host = 0;  ///< of weights in the host's memory
  int64_t beside = 0;   ///< what an evaluation takes besides, in graphs too; context and libraries

  [[nodiscard]] int64_t needed() const { return weights + beside; }
};

/// Of a model whose weights are held so (HeldOptions without buckets), evaluated for `rows` samples
/// at once, the guided and the unguided counted both. recipe.model is resolved. Of two experts with
/// both, or with one where they are exchanged (LoadOptions::exchange_experts).
[[nodiscard]] DrawingMemory drawing_memory(const ModelRecipe& recipe,
                                           const optim::HeldOptions& held, int64_t rows,
                                           bool exchanges_experts = false);

struct FittingWeights {
  optim::HeldOptions held;
  bool exchange_experts = false;
  DrawingMemory memory;
};

/// `held` with the least offload, in tenths, with which drawing takes at most `bytes`. Two experts
/// are exchanged where `exchanges_experts`, or where both do not fit without offload: that moves
/// each weight once a drawing, not once a step. kMemory with what it takes with all offloaded,
/// where that is more.
[[nodiscard]] FittingWeights fitting_weights(const ModelRecipe& recipe, optim::HeldOptions held,
                                             int64_t rows, int64_t bytes,
                                             bool exchanges_experts = false);

}  // namespace kinora::inference
