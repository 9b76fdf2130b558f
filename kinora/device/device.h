#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

/// The device that a program computes on. Works in every build; without GPU support there is none.
namespace kinora::device {

/// The first GPU if there is one, else the CPU.
[[nodiscard]] at::Device best_device();

/// kCuda unless GPU 0 can be used; the message says why not.
void require_cuda();

/// "cuda:0, NVIDIA H200, 139.8 GiB" or "cpu, 2 threads".
[[nodiscard]] std::string describe(at::Device device);

/// Waits for all work on the device.
void synchronize(at::Device device);

/// Largest sum of tensors on the GPU so far, in bytes; 0 on the CPU.
[[nodiscard]] int64_t peak_memory(at::Device device);

/// The same with what the allocator held beside them.
[[nodiscard]] int64_t peak_reserved(at::Device device);

/// Sets CPU threads (0: libtorch's default) and, if asked, only deterministic kernels. Call once,
/// before anything is computed.
void configure_computation(int64_t num_threads, bool deterministic);

}  // namespace kinora::device
