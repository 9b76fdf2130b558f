#pragma once

#include "kinora/kernels/cuda/modulated_norm.h"

/// For kinora_modulated_norm_bench alone: the forward's ways that it compares.
namespace kinora::kernels::cuda {

struct NormTuning {
  int slots = 0;           ///< rows ahead in shared memory (bf16, 776 to 1,280 columns): 1, 2;
                           ///< 0: one ahead in registers
  int rows_per_block = 0;  ///< 0: by the number of rows
  int warps = 0;           ///< of a block: 4, 8; 0: by the number of rows
};

[[nodiscard]] cudaError_t residual_norm_forward(const ResidualNormForward& call,
                                                const NormTuning& tuning, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
