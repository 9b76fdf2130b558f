#pragma once

#include <span>

#include "kinora/kernels/cuda/optimizer.h"

/// For kinora_optim_gpu_bench alone: the ways of adamw_update (one EMA) that it compares.
namespace kinora::kernels::cuda {

struct AdamwVariant {
  const char* name;
  cudaError_t (*update)(const BucketTable& table, const AdamwParameters& parameters,
                        const StepControl* control, cudaStream_t stream);
};

[[nodiscard]] std::span<const AdamwVariant> adamw_variants();

}  // namespace kinora::kernels::cuda
