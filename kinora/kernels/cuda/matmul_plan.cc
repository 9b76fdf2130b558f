#include "kinora/kernels/cuda/matmul_plan.h"

#include <algorithm>
#include <cstring>

#include "kinora/core/error.h"

namespace kinora::kernels::cuda {
namespace {

constexpr cublasComputeType_t kComputeType = CUBLAS_COMPUTE_32F;  // fp32 stays fp32: no TF32
constexpr cudaDataType_t kScaleType = CUDA_R_32F;

/// CUDA_R_8I, which no product here has, for types that the library lacks: it then refuses.
cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_8I;
  }
}

/// Of what is added to the product.
DType c_type(const MatmulProblem& problem) {
  return is_fp8(problem.d_type) ? bias_type(problem) : problem.d_type;
}

bool has_vector(Epilogue epilogue) {
  return epilogue == Epilogue::kBias || epilogue == Epilogue::kBiasGelu ||
         epilogue == Epilogue::kBiasGeluAux || has_bias_grad(epilogue);
}

cublasLtEpilogue_t library_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::kBiasGeluAux:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kGeluGradBias:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case Epilogue::kBiasGrad:
      return CUBLASLT_EPILOGUE_BGRADB;  // its B is our A
  }
  KINORA_UNREACHABLE("[matmul] epilogue ", static_cast<int>(epilogue));
}

int32_t library_scaling(Scaling scaling) {
  switch (scaling) {
    case Scaling::kTensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Scaling::kRow128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Scaling::kBlock128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  KINORA_UNREACHABLE("[matmul] scaling ", static_cast<int>(scaling));
}

bool has_block_scaling(const MatmulProblem& problem) {
  return problem.a_scaling != Scaling::kTensor || problem.b_scaling != Scaling::kTensor;
}

template <typename T>
[[nodiscard]] bool set(cublasLtMatmulDescOpaque_t* operation,
                       cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

template <typename T>
[[nodiscard]] bool set(cublasLtMatmulPreferenceOpaque_t* preference,
                       cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

template <typename T>
[[nodiscard]] T get(const cublasLtMatmulAlgo_t& algo,
                    cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  size_t written = 0;
  // An attribute that the algorithm does not have stays 0, and is then not set either.
  static_cast<void>(
      cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value), &written));
  return value;
}

/// Sets the attribute unless it has that value; some algorithms refuse to be told what they do.
template <typename T>
[[nodiscard]] bool set(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                       T value) {
  return get<T>(*algo, attribute) == value ||
         cublasLtMatmulAlgoConfigSetAttribute(algo, attribute, &value, sizeof(value)) ==
             CUBLAS_STATUS_SUCCESS;
}

MatmulChoice choice_of(const cublasLtMatmulAlgo_t& algo) {
  MatmulChoice choice;
  choice.id = get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID);
  choice.tile = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID);
  choice.split_k = get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  choice.reduction = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  choice.swizzle = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  choice.custom = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  choice.stages = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  choice.inner_shape = get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  choice.cluster_shape = get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return choice;
}

/// Where split sums may be added: in fp32 in the workspace, one order each time. In the output's
/// own type only if that is fp32; in the output itself (in order of arrival) not if the same bits
/// are wanted each time.
uint32_t allowed_reductions(const MatmulContext& context, const MatmulPlan& plan) {
  uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (plan.problem.d_type == DType::kF32) {
    mask |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    mask |= context.deterministic ? 0U : uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE};
  }
  return mask;
}

[[nodiscard]] bool init_layout(cublasLtMatrixLayoutOpaque_t* layout, DType type, int64_t rows,
                               int64_t columns, int64_t row_stride, int64_t batch,
                               int64_t batch_stride) {
  // A row of ours is a column of the library's.
  if (cublasLtMatrixLayoutInit(layout, library_type(type), static_cast<uint64_t>(columns),
                               static_cast<uint64_t>(rows), row_stride) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  if (batch == 1) {
    return true;
  }
  const auto count = static_cast<int32_t>(batch);
  return cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof(count)) == CUBLAS_STATUS_SUCCESS &&
         cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &batch_stride,
                                          sizeof(batch_stride)) == CUBLAS_STATUS_SUCCESS;
}

[[nodiscard]] bool init_operation(MatmulPlan* plan) {
  const MatmulProblem& problem = plan->problem;
  cublasLtMatmulDescOpaque_t* operation = &plan->operation;
  if (cublasLtMatmulDescInit(operation, kComputeType, kScaleType) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  const int32_t transpose_first = problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t transpose_second = problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto epilogue = static_cast<uint32_t>(library_epilogue(problem.epilogue));
  bool ok = set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transpose_first) &&
            set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transpose_second) &&
            set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (problem.fast_accumulation) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  }
  // Only the alignment of these addresses counts until a call sets the true ones.
  constexpr uintptr_t kAligned = 4096;
  const uintptr_t address = kAligned + (plan->alignment.vectors % 16);
  if (is_fp8(problem.a_type)) {
    // What runs without factors need not run with them.
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kAligned) &&
         set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kAligned);
  }
  if (is_fp8(problem.d_type)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, kAligned) &&
         set(operation, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, kAligned);
  }
  if (has_block_scaling(problem)) {
    ok = ok &&
         set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, library_scaling(problem.b_scaling)) &&
         set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, library_scaling(problem.a_scaling));
  }
  if (has_vector(problem.epilogue)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, address);
    if (vector_type(problem) != problem.d_type || is_fp8(problem.a_type)) {
      const int32_t type = library_type(vector_type(problem));
      ok = ok && set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
  }
  if (has_aux(problem.epilogue)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, address) &&
         set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.n);
    if (problem.aux_type != problem.d_type) {
      const int32_t type = library_type(problem.aux_type);
      ok = ok && set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type);
    }
  }
  return ok;
}

}  // namespace

bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

std::optional<MatmulPlan> make_plan(const MatmulProblem& problem,
                                    const MatmulAlignment& alignment) {
  const bool shared_only =
      problem.epilogue == Epilogue::kNone || problem.epilogue == Epilogue::kBias;
  if (problem.batch > 1 && !shared_only) {
    return std::nullopt;
  }
  // The library's blocks lie along k, ours along rows; and where the next product's factors would
  // lie is nowhere said.
  if (has_block_scaling(problem) &&
      (problem.transpose_a || !problem.transpose_b || problem.batch > 1)) {
    return std::nullopt;
  }
  if (is_fp8(problem.d_type) && (problem.accumulate || has_block_scaling(problem))) {
    return std::nullopt;
  }
  MatmulPlan plan{.problem = problem, .alignment = alignment};
  const int64_t m = problem.m;
  const int64_t n = problem.n;
  const int64_t k = problem.k;
  const bool ta = problem.transpose_a;
  const bool tb = problem.transpose_b;
  if (!init_layout(&plan.a, problem.a_type, ta ? k : m, ta ? m : k, problem.lda, problem.batch,
                   problem.a_stride) ||
      !init_layout(&plan.b, problem.b_type, tb ? n : k, tb ? k : n, problem.ldb, problem.batch,
                   problem.b_stride) ||
      !init_layout(&plan.c, c_type(problem), m, n, problem.ldd, problem.batch, problem.d_stride) ||
      !init_layout(&plan.d, problem.d_type, m, n, problem.ldd, problem.batch, problem.d_stride) ||
      !init_operation(&plan)) {
    return std::nullopt;
  }
  return plan;
}

std::vector<MatmulAlgorithm> proposals(const MatmulContext& context, const MatmulPlan& plan,
                                       int count) {
  cublasLtMatmulPreferenceOpaque_t preference = {};
  const bool ready =
      cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS &&
      set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
          uint64_t{context.workspace_bytes}) &&
      set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          allowed_reductions(context, plan)) &&
      set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{plan.alignment.b}) &&
      set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{plan.alignment.a}) &&
      set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{plan.alignment.d}) &&
      set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{plan.alignment.d});
  KINORA_CHECK(ready, kInternal, "[matmul] cuBLASLt refuses preferences");

  // The library takes descriptors it does not change by pointers that are not const.
  MatmulPlan copy = plan;
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  if (cublasLtMatmulAlgoGetHeuristic(context.handle, &copy.operation, &copy.b, &copy.a, &copy.c,
                                     &copy.d, &preference, count, results.data(),
                                     &found) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<MatmulAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    MatmulAlgorithm algorithm{result.algo, result.workspaceSize, choice_of(result.algo), false};
    const auto restored = restore(context, plan, algorithm.choice);
    if (restored) {
      algorithms.push_back(*restored);
    }
    if (!restored || std::memcmp(&restored->algo, &algorithm.algo, sizeof(algorithm.algo)) != 0) {
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

std::optional<MatmulAlgorithm> restore(const MatmulContext& context, const MatmulPlan& plan,
                                       const MatmulChoice& choice) {
  if (choice.reduction != CUBLASLT_REDUCTION_SCHEME_NONE &&
      (choice.reduction & ~allowed_reductions(context, plan)) != 0) {
    return std::nullopt;
  }
  const MatmulProblem& problem = plan.problem;
  MatmulAlgorithm result;
  cublasLtMatmulAlgo_t* algo = &result.algo;
  if (cublasLtMatmulAlgoInit(context.handle, kComputeType, kScaleType, library_type(problem.b_type),
                             library_type(problem.a_type), library_type(c_type(problem)),
                             library_type(problem.d_type), choice.id,
                             algo) != CUBLAS_STATUS_SUCCESS ||
      !set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, choice.tile) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, choice.stages) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, choice.split_k) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, choice.reduction) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, choice.swizzle) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, choice.custom) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, static_cast<uint16_t>(choice.inner_shape)) ||
      !set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
           static_cast<uint16_t>(choice.cluster_shape))) {
    return std::nullopt;
  }
  MatmulPlan copy = plan;
  cublasLtMatmulHeuristicResult_t check = {};
  if (cublasLtMatmulAlgoCheck(context.handle, &copy.operation, &copy.b, &copy.a, &copy.c, &copy.d,
                              algo, &check) != CUBLAS_STATUS_SUCCESS ||
      check.workspaceSize > context.workspace_bytes) {
    return std::nullopt;
  }
  result.workspace_bytes = check.workspaceSize;
  result.choice = choice;
  result.restorable = true;
  return result;
}

bool can_split_k(const MatmulAlgorithm& algorithm) {
  int32_t support = 0;
  uint32_t mask = 0;
  size_t written = 0;
  return cublasLtMatmulAlgoCapGetAttribute(&algorithm.algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT,
                                           &support, sizeof(support),
                                           &written) == CUBLAS_STATUS_SUCCESS &&
         cublasLtMatmulAlgoCapGetAttribute(&algorithm.algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK,
                                           &mask, sizeof(mask),
                                           &written) == CUBLAS_STATUS_SUCCESS &&
         support != 0 && (mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
}

uint32_t max_custom_option(const MatmulAlgorithm& algorithm) {
  constexpr uint32_t kMost = 255;
  uint32_t most = 0;
  size_t written = 0;
  return cublasLtMatmulAlgoCapGetAttribute(&algorithm.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX,
                                           &most, sizeof(most), &written) == CUBLAS_STATUS_SUCCESS
             ? std::min(most, kMost)
             : 0;
}

cublasStatus_t enqueue(const MatmulContext& context, MatmulPlan* plan,
                       const MatmulAlgorithm& algorithm, const MatmulArguments& arguments,
                       cudaStream_t stream) {
  const MatmulProblem& problem = plan->problem;
  cublasLtMatmulDescOpaque_t* operation = &plan->operation;
  bool ok = true;
  if (has_vector(problem.epilogue)) {
    const void* vector = has_bias_grad(problem.epilogue) ? arguments.bias_grad : arguments.bias;
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  }
  if (has_aux(problem.epilogue)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, arguments.aux);
  }
  if (is_fp8(problem.a_type)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, arguments.b_scale) &&
         set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, arguments.a_scale);
  }
  if (is_fp8(problem.d_type)) {
    ok = ok && set(operation, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, arguments.d_scale) &&
         set(operation, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, arguments.d_amax);
  }
  if (!ok) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* const c = is_fp8(problem.d_type) ? nullptr : arguments.d;
  const float alpha = 1.0F;
  const float beta = problem.accumulate ? 1.0F : 0.0F;
  const cublasStatus_t status =
      cublasLtMatmul(context.handle, operation, &alpha, arguments.b, &plan->b, arguments.a,
                     &plan->a, &beta, c, &plan->c, arguments.d, &plan->d, &algorithm.algo,
                     context.workspace, context.workspace_bytes, stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    // A launch that CUDA refused must not be found by somebody else's next check.
    static_cast<void>(cudaGetLastError());
  }
  return status;
}

}  // namespace kinora::kernels::cuda
