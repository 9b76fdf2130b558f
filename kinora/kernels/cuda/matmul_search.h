#pragma once

#include <optional>

#include "kinora/kernels/cuda/matmul_plan.h"

/// Finds a product's fastest algorithm by timing. Internal to cuda/matmul*.cc.
namespace kinora::kernels::cuda {

/// The fastest of the library's proposals, of the first one's variants with other tiles, clusters
/// and options, and, where the output has too few tiles to fill the GPU and k is long, of variants
/// that split k; with its time. Variants must give what the proposals give. Runs on random arrays
/// of its own, for whose time it takes device memory; nothing where there is too little of it, or
/// where the library refuses to run any. Waits for the stream.
[[nodiscard]] std::optional<MatmulAlgorithm> search(const MatmulContext& context, MatmulPlan* plan,
                                                    cudaStream_t stream);

}  // namespace kinora::kernels::cuda
