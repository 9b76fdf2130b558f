#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kinora/kernels/optimizer.h"

/// Launchers of the optimizer's kernels (rules of this folder: cuda/random.h): one launch for all
/// buckets. All arrays, the table of buckets and the control block are in device memory. Any
/// alignment works; 16 bytes for fp32 and 8 for 16-bit arrays is fastest. All launches of a step
/// can be recorded in a graph and serve every step.
namespace kinora::kernels::cuda {

/// out[i] = in[i] rounded, as kernels::cast.
[[nodiscard]] cudaError_t cast(const float* in, int64_t count, DType type, void* out,
                               cudaStream_t stream);

/// Buckets in device memory, as kernels::number_chunks left them.
struct BucketTable {
  const UpdateBucket* buckets = nullptr;
  int32_t num_buckets = 0;
  int64_t num_chunks = 0;
};

/// Bytes of sum_squares' scratch.
[[nodiscard]] size_t sum_squares_workspace_bytes(int64_t num_chunks);

/// control->grad_sum_squares += sum of the squares of all buckets' gradients, in double; the order
/// of additions depends on the buckets' sizes only, not on the GPU. `workspace` may be used again
/// by the next call on the same stream.
[[nodiscard]] cudaError_t sum_squares(const BucketTable& table, void* workspace,
                                      StepControl* control, cudaStream_t stream);

/// kernels::prepare_update on the device.
/// @param exchange  in pinned host memory; may be null.
[[nodiscard]] cudaError_t prepare_update(StepControl* control, const UpdatePolicy& policy,
                                         const StepExchange* exchange, cudaStream_t stream);

/// kernels::conclude_update on the device.
[[nodiscard]] cudaError_t conclude_update(StepControl* control, cudaStream_t stream);

/// kernels::make_directions over all buckets.
[[nodiscard]] cudaError_t make_directions(const BucketTable& table,
                                          const UpdateParameters& parameters,
                                          const StepControl* control, cudaStream_t stream);

/// kernels::adapt_distance on the device.
[[nodiscard]] cudaError_t adapt_distance(StepControl* control, const UpdatePolicy& policy,
                                         cudaStream_t stream);

/// kernels::update_weights over all buckets. Where updates_blocks(parameters), these must be
/// aligned and of whole blocks.
[[nodiscard]] cudaError_t update_weights(const BucketTable& table,
                                         const UpdateParameters& parameters,
                                         const StepControl* control, cudaStream_t stream);
/// sum_squares and update_weights, which read the gradients together where states are fp32.
[[nodiscard]] cudaError_t update_and_add_squares(const BucketTable& table,
                                                 const UpdateParameters& parameters,
                                                 void* workspace, StepControl* control,
                                                 cudaStream_t stream);

/// Writes the step's report to `exchange`, in pinned host memory: for the host to see without a
/// copy, once everything before on this stream is done.
/// @param loss  in device memory; may be null.
[[nodiscard]] cudaError_t publish_report(const StepControl* control, const float* loss,
                                         StepExchange* exchange, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
