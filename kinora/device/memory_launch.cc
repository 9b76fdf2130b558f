#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/device/memory_launch.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "kinora/core/cuda.h"

namespace kinora::device::cuda {

at::Tensor pinned_zeros(int64_t numel, const at::TensorOptions& options) {
  const at::Device device = options.device();
  const c10::cuda::CUDAGuard guard(device);
  const at::Device numbered(device.type(), c10::cuda::current_device());
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  void* memory = nullptr;
  KINORA_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(memory, 0, bytes);
  return at::from_blob(
      memory, {numel}, [](void* pointer) { (void)cudaFreeHost(pointer); }, options.device(numbered),
      numbered);
}

at::Tensor seen_by_host(const at::Tensor& tensor) {
  cudaPointerAttributes attributes;
  KINORA_CUDA_CHECK(cudaPointerGetAttributes(&attributes, tensor.const_data_ptr()));
  if (attributes.type != cudaMemoryTypeHost) {
    return {};
  }
  return at::from_blob(
      attributes.hostPointer, tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(at::kCPU));
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const c10::cuda::CUDAGuard guard(to.device());
  KINORA_CUDA_CHECK(cudaMemcpyAsync(to.data_ptr(), from.const_data_ptr(), from.nbytes(),
                                    cudaMemcpyDefault, c10::cuda::getCurrentCUDAStream()));
}

void limit_memory(at::Device device, int64_t bytes) {
  at::globalContext().lazyInitDevice(device.type());  // the allocator's first use, else
  if (c10::CachingAllocator::getAllocatorSettings().empty()) {
    // Segments that grow and shrink: what lies unused between tensors counts here, too.
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  }
  const auto total = static_cast<double>(cuda_device(device.index()).total_memory);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      std::min(1.0, static_cast<double>(bytes) / total), device.index());
}

}  // namespace kinora::device::cuda
