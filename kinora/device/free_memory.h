#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace kinora::device {

/// What a process takes of a GPU besides tensors, about: a context of CUDA 13 with the code of
/// libtorch, cuBLAS and cuDNN that a run loads: 0.8 to 1.0 GiB on an H100.
inline constexpr int64_t kContextBytes = int64_t{900} << 20;
/// Of a budget what plans may fill: U-Nets have cuDNN's workspaces besides. SD 1.5 planned for 7.9
/// of 8 GiB ran out of memory on an H100.
inline constexpr double kPlannedShare = 0.97;

/// Bytes of a budget, the value of option or key `name`: "8GiB", "600MiB" or "auto", which is
/// `free`; 0 for "none". kConfig for others.
[[nodiscard]] int64_t budget_bytes(const std::string& name, const std::string& budget,
                                   int64_t free);

/// The same of a GPU, of which it is at most all, where `free` is what its driver says. kConfig for
/// a budget on the CPU, too.
[[nodiscard]] int64_t gpu_budget(const std::string& name, const std::string& budget,
                                 at::Device device);

/// Bytes that tensors can still take: on a GPU what is free and what the allocator keeps unused, on
/// the CPU available_memory().
[[nodiscard]] int64_t free_memory(at::Device device);

/// Tensors of this process take at most `bytes` of a GPU from now on: more is out of memory, also
/// where the GPU has it. The allocator's segments grow and shrink then, unless PYTORCH_ALLOC_CONF
/// says otherwise. Nothing on the CPU.
void limit_memory(at::Device device, int64_t bytes);

/// Gives back what libtorch's allocator keeps of tensors that are no more. Nothing on the CPU.
void release_unused(at::Device device);

}  // namespace kinora::device
