// The attention kernels of head_dim 80 and 96 (what they do: attention_forward.cuh,
// attention_backward.cuh, attention_short.cuh).
#include "kinora/kernels/cuda/attention_backward.cuh"
#include "kinora/kernels/cuda/attention_forward.cuh"
#include "kinora/kernels/cuda/attention_short.cuh"

namespace kinora::kernels::cuda::attention {

template cudaError_t launch_forward<80>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t launch_forward<96>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t plan_backward<80>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t plan_backward<96>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t launch_backward<80>(const BackwardPlan&, cudaStream_t);
template cudaError_t launch_backward<96>(const BackwardPlan&, cudaStream_t);
template bool short_supported<80>(const AttentionShape&, const Gpu&);
template bool short_supported<96>(const AttentionShape&, const Gpu&);
template cudaError_t launch_short_forward<80>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_forward<96>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_backward<80>(const AttentionBackward&, cudaStream_t);
template cudaError_t launch_short_backward<96>(const AttentionBackward&, cudaStream_t);

}  // namespace kinora::kernels::cuda::attention
