// The attention kernels of head_dim 128 and 160 (what they do: attention_forward.cuh,
// attention_backward.cuh, attention_short.cuh).
#include "kinora/kernels/cuda/attention_backward.cuh"
#include "kinora/kernels/cuda/attention_forward.cuh"
#include "kinora/kernels/cuda/attention_short.cuh"

namespace kinora::kernels::cuda::attention {

template cudaError_t launch_forward<128>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t launch_forward<160>(const AttentionForward&, const Gpu&, cudaStream_t);
template cudaError_t plan_backward<128>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t plan_backward<160>(const AttentionShape&, const Gpu&, BackwardPlan*);
template cudaError_t launch_backward<128>(const BackwardPlan&, cudaStream_t);
template cudaError_t launch_backward<160>(const BackwardPlan&, cudaStream_t);
template bool short_supported<128>(const AttentionShape&, const Gpu&);
template bool short_supported<160>(const AttentionShape&, const Gpu&);
template cudaError_t launch_short_forward<128>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_forward<160>(const AttentionForward&, cudaStream_t);
template cudaError_t launch_short_backward<128>(const AttentionBackward&, cudaStream_t);
template cudaError_t launch_short_backward<160>(const AttentionBackward&, cudaStream_t);

}  // namespace kinora::kernels::cuda::attention
