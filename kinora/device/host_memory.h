#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::device {

/// Zeros [numel], a tensor of `device` whose bytes lie in the host's memory. A GPU's kernels
/// and copies use it as any other tensor, over the link to the host: page-locked memory has one
/// address on both sides. Takes nothing of the GPU's memory. On a CPU as at::zeros.
/// kMemory where the host has less, with some left for everything else.
[[nodiscard]] at::Tensor zeros_in_host_memory(int64_t numel, at::ScalarType type,
                                              at::Device device);

/// The same elements as a tensor of the CPU, if they lie in the host's memory, where it may read
/// and write them while the device does not; else an undefined one.
[[nodiscard]] at::Tensor seen_by_host(const at::Tensor& tensor);

/// Copies the bytes of `from` to `to`, as many, both contiguous tensors of a device or in the
/// memory of its host: on its current stream, without waiting. autograd does not count it as a
/// change of `to`.
void copy_bytes(const at::Tensor& from, const at::Tensor& to);

}  // namespace kinora::device
