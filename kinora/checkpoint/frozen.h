#pragma once

#include <filesystem>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/training_state.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

/// The arena's frozen parameters in their compute type, on the CPU; of one in few bits its codes,
/// as PATH.int8, PATH.fp8 or PATH.nf4, and their scales, as PATH.scales. Steps do not change them:
/// they are read once a run, and share the arena's memory where that is the host's.
[[nodiscard]] Arrays frozen_of(const optim::Arena& arena);

/// Such parameters by their paths, those in few bits as what they stand for in fp32. `model` says
/// their shapes. kIo if they are not its own.
[[nodiscard]] LateTensors frozen_weights(const Arrays& frozen,
                                         const std::filesystem::path& checkpoint,
                                         nn::Module& model);

/// Sets the arena's frozen parameters to those of `checkpoint`. kIo if they are not the arena's.
void restore_frozen(const Arrays& frozen, const std::filesystem::path& checkpoint,
                    optim::Arena& arena);

}  // namespace kinora::checkpoint
