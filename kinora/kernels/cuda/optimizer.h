#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kinora/kernels/optimizer.h"

/// Launchers of the optimizer's kernels (rules of this folder: cuda/random.h). All arrays and the
/// control block are in device memory. Any alignment works; 16 bytes for fp32 and 8 for 16-bit
/// arrays is fastest.
namespace kinora::kernels::cuda {

/// out[i] = in[i] rounded, as kernels::cast.
[[nodiscard]] cudaError_t cast(const float* in, int64_t count, DType type, void* out,
                               cudaStream_t stream);

/// Bytes of sum_squares' scratch.
[[nodiscard]] size_t sum_squares_workspace_bytes();

/// control->grad_sum_squares += sum of x[i]^2, in double; the order of additions depends on `count`
/// only, not on the GPU. `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t sum_squares(const float* x, int64_t count, void* workspace,
                                      StepControl* control, cudaStream_t stream);

/// kernels::prepare_update on the device.
[[nodiscard]] cudaError_t prepare_update(StepControl* control, const UpdatePolicy& policy,
                                         cudaStream_t stream);

/// kernels::adamw_update over elements [0, count).
[[nodiscard]] cudaError_t adamw_update(const AdamwBuffers& buffers,
                                       const AdamwParameters& parameters,
                                       const StepControl* control, int64_t count,
                                       cudaStream_t stream);

}  // namespace kinora::kernels::cuda
