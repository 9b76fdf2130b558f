// The attention kernels of head_dim 64 and 72 (what they do: attention_forward.cuh,
// attention_backward.cuh, attention_short.cuh).
#include "kinora/kernels/cuda/attention_backward.cuh"
#include "kinora/kernels/cuda/attention_forward.cuh"
#include "kinora/kernels/cuda/attention_short.cuh"

namespace kinora::kernels::cuda::attention {

template cudaError_t launch_forward<64>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t launch_forward<72>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t plan_backward<64>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t plan_backward<72>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t launch_backward<64>(const BackwardPlan&, cudaStream_t);
template cudaError_t launch_backward<72>(const BackwardPlan&, cudaStream_t);
template bool short_supported<64>(const AttentionShape&, const Gpu&);
template bool short_supported<72>(const AttentionShape&, const Gpu&);
template cudaError_t launch_short_forward<64>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_forward<72>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_backward<64>(const AttentionBackward&, cudaStream_t);
template cudaError_t launch_short_backward<72>(const AttentionBackward&, cudaStream_t);

}  // namespace kinora::kernels::cuda::attention
