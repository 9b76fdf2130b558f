#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// Copies from memory to shared memory that go on while a thread does other things. Shared memory
/// is addressed by bytes in the shared window.
namespace kinora::kernels::cuda {

/// Starts copying 16 bytes to shared memory, both addresses aligned to 16; zeros if not `valid`
/// (`source` is then not read).
__device__ __forceinline__ void copy_async(uint32_t target, const void* source, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  const uint4 value = valid ? *static_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

/// The same of a place that is valid, by its pointer.
__device__ __forceinline__ void copy_async(uint4* target, const void* source) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(target));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source) : "memory");
#else
  *target = *static_cast<const uint4*>(source);
#endif
}

/// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most kPending of this thread's youngest groups are still on their way. The data
/// of the others is then visible to this thread; to others after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace kinora::kernels::cuda
