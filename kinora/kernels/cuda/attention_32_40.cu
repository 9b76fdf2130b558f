// The attention kernels of head_dim 32 and 40 (what they do: attention_forward.cuh,
// attention_backward.cuh, attention_short.cuh).
#include "kinora/kernels/cuda/attention_backward.cuh"
#include "kinora/kernels/cuda/attention_forward.cuh"
#include "kinora/kernels/cuda/attention_short.cuh"

namespace kinora::kernels::cuda::attention {

template cudaError_t launch_forward<32>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t launch_forward<40>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t plan_backward<32>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t plan_backward<40>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t launch_backward<32>(const BackwardPlan&, cudaStream_t);
template cudaError_t launch_backward<40>(const BackwardPlan&, cudaStream_t);
template bool short_supported<32>(const AttentionShape&, const Gpu&);
template bool short_supported<40>(const AttentionShape&, const Gpu&);
template cudaError_t launch_short_forward<32>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_forward<40>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_backward<32>(const AttentionBackward&, cudaStream_t);
template cudaError_t launch_short_backward<40>(const AttentionBackward&, cudaStream_t);

}  // namespace kinora::kernels::cuda::attention
