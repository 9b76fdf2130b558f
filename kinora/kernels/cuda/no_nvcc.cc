// The launchers of a build with GPU support but without nvcc: callers fall back on libtorch's own
// kernels.
#include "kinora/kernels/cuda/optimizer.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::kernels::cuda {

bool has_cuda_kernels() {
  return false;
}

cudaError_t random_fill(float* /*out*/, int64_t /*rows*/, int64_t /*row_size*/,
                        const int64_t* /*sample_index*/, const RandomStream& /*stream*/,
                        uint64_t /*first_element*/, Distribution /*distribution*/, float /*scale*/,
                        cudaStream_t /*cuda_stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t cast(const float* /*in*/, int64_t /*count*/, DType /*type*/, void* /*out*/,
                 cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t sum_squares_workspace_bytes() {
  return 0;
}

cudaError_t sum_squares(const float* /*x*/, int64_t /*count*/, void* /*workspace*/,
                        StepControl* /*control*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t prepare_update(StepControl* /*control*/, const UpdatePolicy& /*policy*/,
                           cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t adamw_update(const AdamwBuffers& /*buffers*/, const AdamwParameters& /*parameters*/,
                         const StepControl* /*control*/, int64_t /*count*/,
                         cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace kinora::kernels::cuda
