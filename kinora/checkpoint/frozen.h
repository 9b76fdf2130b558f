#pragma once

#include <filesystem>

#include "kinora/checkpoint/training_state.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

/// The arena's frozen parameters in their compute type, on the CPU. Steps do not change them: they
/// are read once a run, and share the arena's memory where that is the host's.
[[nodiscard]] Arrays frozen_of(const optim::Arena& arena);

/// Sets the arena's frozen parameters to those of `checkpoint`. kIo if they are not the arena's.
void restore_frozen(const Arrays& frozen, const std::filesystem::path& checkpoint,
                    optim::Arena& arena);

}  // namespace kinora::checkpoint
