// The launchers of a build with GPU support but without nvcc: callers fall back on libtorch's own
// kernels.
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/attention.h"
#include "kinora/kernels/cuda/channel_norm.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/diffusion_loss.h"
#include "kinora/kernels/cuda/factored.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/fp8_blocks.h"
#include "kinora/kernels/cuda/gated_gelu.h"
#include "kinora/kernels/cuda/graph_memsets.h"
#include "kinora/kernels/cuda/group_norm.h"
#include "kinora/kernels/cuda/low_rank.h"
#include "kinora/kernels/cuda/modulated_norm.h"
#include "kinora/kernels/cuda/optimizer.h"
#include "kinora/kernels/cuda/patches.h"
#include "kinora/kernels/cuda/peers.h"
#include "kinora/kernels/cuda/qk_norm_rotary.h"
#include "kinora/kernels/cuda/ragged_attention.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/kernels/cuda/residual_sum.h"
#include "kinora/kernels/cuda/rms_norm.h"
#include "kinora/kernels/cuda/stopwatch.h"
#include "kinora/kernels/cuda/weight_codes.h"

namespace kinora::kernels::cuda {

bool has_cuda_kernels() {
  return false;
}

int kernel_capability() {
  return 0;
}

bool attention_supported(const AttentionShape& /*shape*/) {
  return false;
}

cudaError_t attention_forward(const AttentionForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t attention_backward_workspace_bytes(const AttentionShape& /*shape*/) {
  return 0;
}

cudaError_t attention_backward(const AttentionBackward& /*call*/, void* /*workspace*/,
                               cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t random_fill(float* /*out*/, int64_t /*rows*/, int64_t /*row_size*/,
                        const int64_t* /*sample_index*/, const int64_t* /*seed*/,
                        const RandomStream& /*stream*/, const int64_t* /*step*/,
                        uint64_t /*first_element*/, Distribution /*distribution*/, float /*scale*/,
                        cudaStream_t /*cuda_stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t cast(const float* /*in*/, int64_t /*count*/, DType /*type*/, void* /*out*/,
                 cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t sum_squares_workspace_bytes(int64_t /*num_chunks*/) {
  return 0;
}

cudaError_t sum_squares(const BucketTable& /*table*/, void* /*workspace*/, StepControl* /*control*/,
                        cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t prepare_update(StepControl* /*control*/, const UpdatePolicy& /*policy*/,
                           const StepExchange* /*exchange*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t conclude_update(StepControl* /*control*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t make_directions(const BucketTable& /*table*/, const UpdateParameters& /*parameters*/,
                            const StepControl* /*control*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t adapt_distance(StepControl* /*control*/, const UpdatePolicy& /*policy*/,
                           cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t update_weights(const BucketTable& /*table*/, const UpdateParameters& /*parameters*/,
                           const StepControl* /*control*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t update_and_add_squares(const BucketTable& /*table*/,
                                   const UpdateParameters& /*parameters*/, void* /*workspace*/,
                                   StepControl* /*control*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t publish_report(const StepControl* /*control*/, const float* /*loss*/,
                           StepExchange* /*exchange*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t run_pass(FactoredPass /*pass*/, const FactoredTable& /*table*/,
                     const FactoredRule& /*rule*/, const StepControl* /*control*/,
                     cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t gated_activation(const GatedActivation& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t gated_gelu_forward(const GatedGeluForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t gated_gelu_backward(const GatedGeluBackward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t residual_sum(const ResidualSum& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

bool ragged_attention_supported(const RaggedAttention& /*call*/) {
  return false;
}

cudaError_t ragged_attention(const RaggedAttention& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t activation_forward(const ActivationForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t activation_backward_workspace_bytes(int64_t /*rows*/, int64_t /*width*/,
                                           bool /*bias_grad*/) {
  return 0;
}

cudaError_t activation_backward(const ActivationBackward& /*call*/, void* /*workspace*/,
                                cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t column_sums_workspace_bytes(int64_t /*rows*/, int64_t /*width*/) {
  return 0;
}

cudaError_t column_sums(const ColumnSums& /*call*/, void* /*workspace*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t add_partial_sums(const float* /*partial*/, int64_t /*count*/, int64_t /*width*/,
                             float* /*out*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t diffusion_loss_workspace_bytes(int64_t /*batch*/, int64_t /*sample_size*/) {
  return 0;
}

cudaError_t diffusion_loss(const DiffusionLoss& /*call*/, void* /*workspace*/,
                           cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t patchify(const Patches& /*patches*/, const float* /*image*/, void* /*tokens*/,
                     cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t unpatchify(const Patches& /*patches*/, const void* /*tokens*/, float* /*image*/,
                       cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t residual_norm_forward(const ResidualNormForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t residual_norm_backward_workspace_bytes(int64_t /*rows*/, int64_t /*width*/) {
  return 0;
}

cudaError_t residual_norm_backward(const ResidualNormBackward& /*call*/, void* /*workspace*/,
                                   cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t qk_norm_rotary_forward(const QkNormRotaryForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t qk_norm_rotary_backward_workspace_bytes(int64_t /*rows*/, int64_t /*head_dim*/,
                                               bool /*dweight*/) {
  return 0;
}

cudaError_t qk_norm_rotary_backward(const QkNormRotaryBackward& /*call*/, void* /*workspace*/,
                                    cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t rms_norm_forward(const RmsNormForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t rms_norm_backward_workspace_bytes(int64_t /*rows*/, int64_t /*width*/, bool /*dweight*/) {
  return 0;
}

cudaError_t rms_norm_backward(const RmsNormBackward& /*call*/, void* /*workspace*/,
                              cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t quantise(const Quantise& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t transpose_bytes(const void* /*in*/, int64_t /*rows*/, int64_t /*width*/, void* /*out*/,
                            cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t update_scales(const ScaleUpdate& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t block_quantise(const BlockQuantise& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t dequantise_weight(const WeightCodes& /*call*/, DType /*type*/, void* /*out*/,
                              int64_t /*width*/, int64_t /*gap*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t block_sums(const BlockSums& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

bool low_rank_supported(DType /*type*/, int64_t /*in*/, int64_t /*out*/, int64_t /*rank*/) {
  return false;
}

cudaError_t low_rank_forward(const LowRankForward& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

size_t low_rank_backward_workspace_bytes(int64_t /*rows*/, int64_t /*in*/, int64_t /*out*/,
                                         int64_t /*rank*/) {
  return 0;
}

cudaError_t low_rank_backward(const LowRankBackward& /*call*/, void* /*workspace*/,
                              cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t low_rank_add_gradients(std::span<const LowRankParts> /*parts*/,
                                   cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t replace_memsets(cudaGraph_t /*graph*/) {
  return cudaSuccess;  // they stay
}

cudaError_t begin_lap(StopwatchState* /*state*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t end_lap(StopwatchState* /*state*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t peer_barrier(const PeerBarrier& /*barrier*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t peer_scatter(const PeerScatter& /*scatter*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

bool group_norm_takes(const GroupNormShape& /*shape*/) {
  return false;
}

size_t group_norm_forward_workspace_bytes(const GroupNormForward& /*call*/) {
  return 0;
}

size_t group_norm_backward_workspace_bytes(const GroupNormBackward& /*call*/) {
  return 0;
}

cudaError_t group_norm_forward(const GroupNormForward& /*call*/, void* /*workspace*/,
                               cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t group_norm_backward(const GroupNormBackward& /*call*/, void* /*workspace*/,
                                cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

bool channel_norm_takes(int64_t /*channels*/, DType /*type*/) {
  return false;
}

size_t channel_moments_workspace_bytes(int64_t /*batch*/, int64_t /*places*/, int64_t /*channels*/,
                                       DType /*type*/) {
  return 0;
}

cudaError_t channel_moments(const ChannelMoments& /*call*/, void* /*workspace*/,
                            cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t channel_affine(const ChannelAffine& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t group_affine(const GroupAffine& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t channel_repeat(const ChannelRepeat& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

cudaError_t channel_phases(const ChannelPhases& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

bool channel_rms_takes(int64_t /*channels*/, DType /*type*/) {
  return false;
}

cudaError_t channel_rms(const ChannelRms& /*call*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace kinora::kernels::cuda
