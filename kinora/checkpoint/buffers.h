#pragma once

#include "kinora/checkpoint/training_state.h"
#include "kinora/nn/module.h"

namespace kinora::checkpoint {

/// The buffers of a model, copied to the CPU.
[[nodiscard]] Arrays buffers_of(nn::Module& model);

/// Sets the buffers of `model` that `buffers` has; the others stay. kIo for one of another shape,
/// and then nothing is changed.
void restore_buffers(const Arrays& buffers, nn::Module& model);

}  // namespace kinora::checkpoint
