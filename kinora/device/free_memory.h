#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace kinora::device {

/// Bytes that tensors can still take: on a GPU what is free and what the allocator keeps unused, on
/// the CPU available_memory().
[[nodiscard]] int64_t free_memory(at::Device device);

/// Tensors of this process take at most `bytes` of a GPU from now on: more is out of memory, also
/// where the GPU has it. Nothing on the CPU.
void limit_memory(at::Device device, int64_t bytes);

}  // namespace kinora::device
