#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// The parts of host_memory.h and free_memory.h that need CUDA; builds without it have a file that
/// throws.
namespace kinora::device::cuda {

[[nodiscard]] at::Tensor pinned_zeros(int64_t numel, const at::TensorOptions& options);

[[nodiscard]] at::Tensor seen_by_host(const at::Tensor& tensor);

void copy_bytes(const at::Tensor& from, const at::Tensor& to);

void limit_memory(at::Device device, int64_t bytes);

}  // namespace kinora::device::cuda
