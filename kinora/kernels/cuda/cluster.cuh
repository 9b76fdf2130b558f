#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

/// Clusters of blocks that read each other's shared memory. On GPUs without them (before compute
/// capability 9) a block is a cluster by itself.
namespace kinora::kernels::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ int cluster_size() {
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
}

__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}

/// The same variable in the shared memory of block `rank`.
template <typename T>
__device__ __forceinline__ T* shared_of_rank(T* variable, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(variable, rank);
}

/// A barrier of all threads of the cluster's blocks.
__device__ __forceinline__ void sync_cluster() {
  cooperative_groups::this_cluster().sync();
}

#else

__device__ __forceinline__ int cluster_size() {
  return 1;
}

__device__ __forceinline__ int cluster_rank() {
  return 0;
}

template <typename T>
__device__ __forceinline__ T* shared_of_rank(T* variable, int /*rank*/) {
  return variable;
}

__device__ __forceinline__ void sync_cluster() {
  __syncthreads();
}

#endif

}  // namespace kinora::kernels::cuda
