#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace kinora::kernels::cuda {

/// Bytes of shared memory that one block may have on this device; 0 where that cannot be known.
inline size_t max_shared_bytes() {
  int device = 0;
  int bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess) {
    return 0;
  }
  return static_cast<size_t>(bytes);
}

}  // namespace kinora::kernels::cuda
