#include "kinora/kernels/cuda/attention_tensor_map.h"

#include <algorithm>

namespace kinora::kernels::cuda::attention {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking the driver; null where it has none.
Encode encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kVersion, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(function)
             : nullptr;
}

}  // namespace

cudaError_t make_tensor_map(const HeadsView& view, const AttentionShape& shape, int64_t length,
                            int rows, CUtensorMap* map) {
  static const Encode kEncode = encode_function();
  if (kEncode == nullptr) {
    return cudaErrorNotSupported;
  }
  constexpr int64_t kElement = 2;  // bytes
  // The stride of a dimension of one is not used, but checked.
  const auto bytes = [](int64_t stride, int64_t size) {
    return static_cast<cuuint64_t>(size > 1 ? stride * kElement : 16);
  };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(shape.head_dim),
                              static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(shape.heads),
                              static_cast<cuuint64_t>(shape.batch)};
  const cuuint64_t strides[] = {bytes(view.row_stride, length),
                                bytes(view.head_stride, shape.heads),
                                bytes(view.batch_stride, shape.batch)};
  const cuuint32_t box[] = {16, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUtensorMapDataType type = shape.type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result =
      kEncode(map, type, 4, view.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace kinora::kernels::cuda::attention
