#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "kinora/kernels/matmul.h"
#include "kinora/kernels/matmul_cache.h"

/// cuBLASLt's view of a product. Internal to cuda/matmul*.cc.
///
/// The library thinks in columns: our row-major D[m, n] is its D^T[n, m], so its A is our B and its
/// rows are our columns; "a" and "b" below are always ours. A transposed operand stays transposed.
namespace kinora::kernels::cuda {

/// What the products of one Matmul share.
struct MatmulContext {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  bool deterministic = false;
  int num_multiprocessors = 0;
  size_t l2_bytes = 0;
};

struct MatmulPlan {
  MatmulProblem problem;  ///< normalised
  MatmulAlignment alignment;
  cublasLtMatmulDescOpaque_t operation = {};
  cublasLtMatrixLayoutOpaque_t a = {};
  cublasLtMatrixLayoutOpaque_t b = {};
  /// What is added: D itself, but where D is 8-bit nothing, in the type that the library wants.
  cublasLtMatrixLayoutOpaque_t c = {};
  cublasLtMatrixLayoutOpaque_t d = {};
};

struct MatmulAlgorithm {
  cublasLtMatmulAlgo_t algo = {};
  size_t workspace_bytes = 0;
  MatmulChoice choice;
  /// Whether other runs restore the same from `choice`.
  bool restorable = false;
};

/// Nothing where the library knows no such descriptors.
[[nodiscard]] std::optional<MatmulPlan> make_plan(const MatmulProblem& problem,
                                                  const MatmulAlignment& alignment);

/// The library's proposals, best guess first; none: it has no such product. What other runs can
/// restore from the numbers, and where that is not all there is, behind it the proposal itself.
/// @param count  at most so many are asked for.
[[nodiscard]] std::vector<MatmulAlgorithm> proposals(const MatmulContext& context,
                                                     const MatmulPlan& plan, int count);

/// The algorithm of `choice`, if the library has it for this product, within the workspace and with
/// sums that the context allows.
[[nodiscard]] std::optional<MatmulAlgorithm> restore(const MatmulContext& context,
                                                     const MatmulPlan& plan,
                                                     const MatmulChoice& choice);

/// Whether split sums of this algorithm can be added in fp32, in the workspace.
[[nodiscard]] bool can_split_k(const MatmulAlgorithm& algorithm);

/// The largest CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION of this algorithm, at most 255.
[[nodiscard]] uint32_t max_custom_option(const MatmulAlgorithm& algorithm);

/// A status that is_refusal() says that nothing was enqueued.
[[nodiscard]] cublasStatus_t enqueue(const MatmulContext& context, MatmulPlan* plan,
                                     const MatmulAlgorithm& algorithm,
                                     const MatmulArguments& arguments, cudaStream_t stream);

/// Whether the library found, before it did anything, that it cannot run the algorithm after all:
/// some of what it needs is looked at only now, not by proposals() and restore().
[[nodiscard]] bool is_refusal(cublasStatus_t status);

}  // namespace kinora::kernels::cuda
