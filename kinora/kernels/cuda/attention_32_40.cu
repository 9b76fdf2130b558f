// The attention kernels of head_dim 32 and 40 (what they do: attention_forward.cuh,
// attention_backward.cuh).
#include "kinora/kernels/cuda/attention_backward.cuh"
#include "kinora/kernels/cuda/attention_forward.cuh"

namespace kinora::kernels::cuda::attention {

template cudaError_t launch_forward<32>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t launch_forward<40>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t plan_backward<32>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t plan_backward<40>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t launch_backward<32>(const BackwardPlan&, cudaStream_t);
template cudaError_t launch_backward<40>(const BackwardPlan&, cudaStream_t);

}  // namespace kinora::kernels::cuda::attention
