#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/attention.h"

/// How a call is laid out on the GPU, and the launchers of one head_dim, which attention.cu chooses
/// from.
namespace kinora::kernels::cuda::attention {

/// Limits of the current GPU.
struct Gpu {
  int num_multiprocessors = 0;
  int shared_bytes = 0;  ///< most that a block may have
  int capability = 0;    ///< 10 major + minor
};

struct ForwardPlan {
  AttentionForward call;
  float scale_log2 = 0.0F;  ///< scale log2(e)
  int num_warps = 0;        ///< of a block
  int tile_keys = 0;        ///< keys of a stage, a multiple of 16
  int num_stages = 0;       ///< of the ring, at least 2
  int num_groups = 0;       ///< blocks of a head
  int num_passes = 0;       ///< tiles of queries of a block
  int num_blocks = 0;
  int shared_bytes = 0;
};

struct BackwardPlan {
  AttentionBackward call;
  float scale_log2 = 0.0F;
  int num_warps = 0;       ///< of a block
  int num_kv_buffers = 0;  ///< 2: the next keys and values are fetched ahead
  int num_slots = 0;       ///< steps of queries whose dS is kept
  int num_splits = 0;      ///< parts of the queries of a head
  int split_steps = 0;     ///< steps of queries of a part
  int num_items = 0;       ///< parts of all heads
  int num_blocks = 0;      ///< items i, i + num_blocks, ... belong to block i
  int shared_bytes = 0;
  int64_t dq_floats = 0;   ///< of a block: sums over the keys so far; 0 if all keys fit at once
  int64_t dkv_floats = 0;  ///< of a part: dK and dV of all heads; 0 if heads are not parted
  float* dq_partial = nullptr;
  float* dkv_partial = nullptr;

  [[nodiscard]] size_t workspace_bytes() const {
    return sizeof(float) * static_cast<size_t>(dq_floats * num_blocks + dkv_floats * num_splits);
  }
};

template <int kHeadDim>
cudaError_t launch_forward(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream);

/// num_blocks depends on the kernel's registers, so the plan is made where the kernel is.
template <int kHeadDim>
cudaError_t plan_backward(const AttentionShape& shape, const Gpu& gpu, BackwardPlan* plan);

template <int kHeadDim>
cudaError_t launch_backward(const BackwardPlan& plan, cudaStream_t stream);

/// The kernels of sequences of at most 32 tokens (of 16 above head_dim 96), all of one length.
template <int kHeadDim>
bool short_supported(const AttentionShape& shape, const Gpu& gpu);

template <int kHeadDim>
cudaError_t launch_short_forward(const AttentionForward& call, cudaStream_t stream);

template <int kHeadDim>
cudaError_t launch_short_backward(const AttentionBackward& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda::attention
