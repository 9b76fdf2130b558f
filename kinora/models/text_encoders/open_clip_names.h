#pragma once

#include <cstdint>

#include "kinora/nn/naming.h"

/// Keys of OpenCLIP's text tower, as the paths of ClipTextEncoder.
namespace kinora::models {

/// Of a tower of so many blocks, which packs queries, keys and values in one tensor. Here `path` is
/// OpenCLIP's and `keys` are ours (checkpoint::take_renamed).
[[nodiscard]] nn::Naming from_open_clip(int64_t blocks);

}  // namespace kinora::models
