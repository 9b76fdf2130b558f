// Own attention kernels: the choice by head_dim, and the sum of the parts of dK and dV. The kernels
// are in attention_forward.cuh, attention_backward.cuh and attention_short.cuh, compiled in
// attention_64_72.cu and its like.
#include "kinora/kernels/cuda/attention.h"

#include <limits>
#include <type_traits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_plan.h"
#include "kinora/kernels/cuda/attention_tile.cuh"
#include "kinora/kernels/cuda/attention_wgmma.h"
#include "kinora/kernels/cuda/random.h"

namespace kinora::kernels::cuda {
namespace {

using attention::BackwardPlan;
using attention::Gpu;

constexpr int kSumThreads = 256;
constexpr int kWidth = 4;  // elements of a thread

cudaError_t current_gpu(Gpu* gpu) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const struct {
    int* value;
    cudaDeviceAttr attribute;
  } wanted[] = {{&gpu->num_multiprocessors, cudaDevAttrMultiProcessorCount},
                {&gpu->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
  for (const auto& fact : wanted) {
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(fact.value, fact.attribute, device);
    }
  }
  gpu->capability = kernel_capability();
  return error;
}

/// function(std::integral_constant<int, head_dim>) for the head_dim at hand.
template <typename Function>
cudaError_t with_head_dim(int64_t head_dim, const Function& function) {
  switch (head_dim) {
    case 32:
      return function(std::integral_constant<int, 32>());
    case 40:
      return function(std::integral_constant<int, 40>());
    case 64:
      return function(std::integral_constant<int, 64>());
    case 72:
      return function(std::integral_constant<int, 72>());
    case 80:
      return function(std::integral_constant<int, 80>());
    case 96:
      return function(std::integral_constant<int, 96>());
    case 128:
      return function(std::integral_constant<int, 128>());
    case 160:
      return function(std::integral_constant<int, 160>());
    default:
      return cudaErrorNotSupported;
  }
}

bool is_supported(const AttentionShape& shape, const Gpu& gpu) {
  if (shape.mask.any()) {
    return attention::blocks_supported(shape, gpu);
  }
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() / 2;
  const bool has_type = (shape.type == DType::kBF16 && gpu.capability >= 80) ||
                        (shape.type == DType::kF16 && gpu.capability >= 75);
  const auto yes = [](auto /*head_dim*/) { return cudaSuccess; };
  const bool fits = shape.query_length >= 1 && shape.query_length <= kMax / 32 &&
                    shape.key_length >= 1 && shape.key_length <= kMax / 32 && shape.batch >= 0 &&
                    shape.heads >= 0 &&
                    shape.batch * shape.heads <= kMax / (shape.query_length / 32 + 1);
  return has_type && fits && shape.scale > 0.0F &&
         with_head_dim(shape.head_dim, yes) == cudaSuccess;
}

bool is_short(const AttentionShape& shape, const Gpu& gpu) {
  bool result = false;
  (void)with_head_dim(shape.head_dim, [&](auto head_dim) {
    result = attention::short_supported<head_dim()>(shape, gpu);
    return cudaSuccess;
  });
  return result;
}

bool is_aligned(const HeadsView& view) {
  constexpr int64_t kElements = 8;  // 16 bytes
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.batch_stride % kElements == 0 &&
         view.row_stride % kElements == 0 && view.head_stride % kElements == 0;
}

cudaError_t make_plan(const AttentionShape& shape, const Gpu& gpu, BackwardPlan* plan) {
  return with_head_dim(shape.head_dim, [&](auto head_dim) {
    return attention::plan_backward<head_dim()>(shape, gpu, plan);
  });
}

/// dK and dV from the parts' sums [num_splits][head][key][dK, dV][head_dim], in order of the parts.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(const __grid_constant__ BackwardPlan plan) {
  const AttentionShape& shape = plan.call.shape;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x) * kWidth;
  if (first >= plan.dkv_floats) {
    return;
  }
  const int64_t row = first / (2 * shape.head_dim);
  const int64_t column = first - row * 2 * shape.head_dim;
  const int64_t head = row / shape.key_length;
  const int64_t key = row - head * shape.key_length;
  const int64_t b = head / shape.heads;
  const attention::KeyRange keys = attention::key_range(shape, static_cast<int>(b));
  if (key >= keys.count) {
    return;
  }
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  for (int split = 0; split < plan.num_splits; ++split) {
    const float4 part =
        *reinterpret_cast<const float4*>(plan.dkv_partial + split * plan.dkv_floats + first);
    sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
  }
  const bool is_dk = column < shape.head_dim;
  uint16_t* target = attention::row_of(is_dk ? plan.call.dk : plan.call.dv, keys.b,
                                       keys.begin + key, head - b * shape.heads);
  *reinterpret_cast<uint2*>(target + (is_dk ? column : column - shape.head_dim)) =
      make_uint2(attention::pack<T>(sum.x, sum.y), attention::pack<T>(sum.z, sum.w));
}

cudaError_t sum_parts(const BackwardPlan& plan, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(plan.dkv_floats / kWidth, kSumThreads));
  if (plan.call.shape.type == DType::kBF16) {
    sum_parts_kernel<attention::Bf16><<<blocks, kSumThreads, 0, stream>>>(plan);
  } else {
    sum_parts_kernel<attention::F16><<<blocks, kSumThreads, 0, stream>>>(plan);
  }
  return cudaGetLastError();
}

}  // namespace

bool attention_supported(const AttentionShape& shape) {
  Gpu gpu;
  return current_gpu(&gpu) == cudaSuccess && is_supported(shape, gpu);
}

cudaError_t attention_forward(const AttentionForward& call, cudaStream_t stream) {
  Gpu gpu;
  const cudaError_t error = current_gpu(&gpu);
  if (error != cudaSuccess) {
    return error;
  }
  if (!is_supported(call.shape, gpu)) {
    return cudaErrorNotSupported;
  }
  for (const HeadsView* view : {&call.q, &call.k, &call.v, &call.out}) {
    if (!is_aligned(*view)) {
      return cudaErrorInvalidValue;
    }
  }
  if (call.shape.batch * call.shape.heads == 0) {
    return cudaSuccess;
  }
  if (call.shape.mask.any()) {
    return attention::launch_blocks_forward(call, gpu, stream);
  }
  if (is_short(call.shape, gpu)) {
    return with_head_dim(call.shape.head_dim, [&](auto head_dim) {
      return attention::launch_short_forward<head_dim()>(call, stream);
    });
  }
  if (attention::wgmma_forward_supported(call.shape, gpu)) {
    return attention::launch_wgmma_forward(call, gpu, stream);
  }
  return with_head_dim(call.shape.head_dim, [&](auto head_dim) {
    return attention::launch_forward<head_dim()>(call, gpu, stream);
  });
}

size_t attention_backward_workspace_bytes(const AttentionShape& shape) {
  Gpu gpu;
  if (shape.batch * shape.heads == 0 || current_gpu(&gpu) != cudaSuccess ||
      !is_supported(shape, gpu)) {
    return 0;
  }
  if (!shape.mask.any() && is_short(shape, gpu)) {
    return 0;
  }
  if (shape.mask.any() || attention::wgmma_backward_supported(shape, gpu)) {
    return attention::wgmma_backward_workspace_bytes(shape);
  }
  BackwardPlan plan;
  return make_plan(shape, gpu, &plan) == cudaSuccess ? plan.workspace_bytes() : 0;
}

cudaError_t attention_backward(const AttentionBackward& call, void* workspace,
                               cudaStream_t stream) {
  Gpu gpu;
  cudaError_t error = current_gpu(&gpu);
  if (error != cudaSuccess) {
    return error;
  }
  if (!is_supported(call.shape, gpu)) {
    return cudaErrorNotSupported;
  }
  for (const HeadsView* view :
       {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv}) {
    if (!is_aligned(*view)) {
      return cudaErrorInvalidValue;
    }
  }
  if (call.shape.batch * call.shape.heads == 0) {
    return cudaSuccess;
  }
  if (call.shape.mask.any()) {
    return attention::launch_blocks_backward(call, workspace, stream);
  }
  if (is_short(call.shape, gpu)) {
    return with_head_dim(call.shape.head_dim, [&](auto head_dim) {
      return attention::launch_short_backward<head_dim()>(call, stream);
    });
  }
  if (attention::wgmma_backward_supported(call.shape, gpu)) {
    return attention::launch_wgmma_backward(call, workspace, gpu, stream);
  }
  BackwardPlan plan;
  error = make_plan(call.shape, gpu, &plan);
  if (error != cudaSuccess) {
    return error;
  }
  plan.call = call;
  plan.dq_partial = static_cast<float*>(workspace);
  plan.dkv_partial = plan.dq_partial + plan.dq_floats * plan.num_blocks;
  error = with_head_dim(call.shape.head_dim, [&](auto head_dim) {
    return attention::launch_backward<head_dim()>(plan, stream);
  });
  if (error == cudaSuccess && plan.num_splits > 1) {
    error = sum_parts(plan, stream);
  }
  return error;
}

}  // namespace kinora::kernels::cuda
