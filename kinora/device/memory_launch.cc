#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/device/memory_launch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::device::cuda {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

/// Whether the device reads at its own address what the host has mapped and registers later.
bool takes_registered(c10::DeviceIndex device) {
  int registers = 0;
  int shares_addresses = 0;
  KINORA_CUDA_CHECK(cudaDeviceGetAttribute(&registers, cudaDevAttrHostRegisterSupported, device));
  KINORA_CUDA_CHECK(cudaDeviceGetAttribute(&shares_addresses,
                                           cudaDevAttrCanUseHostPointerForRegisteredMem, device));
  return registers != 0 && shares_addresses != 0;
}

/// Zeros in pages that all cores have touched.
void* mapped_zeros(size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KINORA_CHECK(memory != MAP_FAILED, kMemory, "[memory] the system has no ", bytes,
               " bytes of the host's memory to give: ", std::strerror(errno));
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // where the kernel has them
  const auto pages = static_cast<int64_t>(ceil_div(bytes, kHugePage));
  at::parallel_for(0, pages, 1, [memory, bytes](int64_t first, int64_t last) {
    const size_t begin = static_cast<size_t>(first) * kHugePage;
    const size_t end = std::min(static_cast<size_t>(last) * kHugePage, bytes);
    std::memset(static_cast<std::byte*>(memory) + begin, 0, end - begin);
  });
  return memory;
}

}  // namespace

at::Tensor pinned_zeros(int64_t numel, const at::TensorOptions& options) {
  const at::Device device = options.device();
  const c10::cuda::CUDAGuard guard(device);
  const at::Device numbered(device.type(), c10::cuda::current_device());
  const size_t bytes = std::max<size_t>(static_cast<size_t>(numel) * options.dtype().itemsize(), 1);
  if (takes_registered(numbered.index())) {
    // cudaHostAlloc touches pages of 4 KiB one by one: 0.4 s a GiB, where this takes 0.06.
    void* const memory = mapped_zeros(bytes);
    const cudaError_t failure =
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (failure != cudaSuccess) {
      ::munmap(memory, bytes);
    }
    KINORA_CUDA_CHECK(failure);
    return at::from_blob(
        memory, {numel},
        [bytes](void* pointer) {
          (void)cudaHostUnregister(pointer);
          ::munmap(pointer, bytes);
        },
        options.device(numbered), numbered);
  }
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
