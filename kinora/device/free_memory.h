#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace kinora::device {

/// Bytes that tensors can still take: on a GPU what is free and what the allocator keeps unused, on
/// the CPU available_memory().
[[nodiscard]] int64_t free_memory(at::Device device);

}  // namespace kinora::device
