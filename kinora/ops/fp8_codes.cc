#include "kinora/ops/fp8_codes.h"

#include <ATen/ops/empty.h>

#include "kinora/core/error.h"
#include "kinora/kernels/fp8.h"
#include "kinora/kernels/fp8_blocks.h"
#include "kinora/ops/block_launch.h"

namespace kinora::ops {
namespace {

constexpr int64_t kRows = 16;  // a multiple of which the kernel takes
constexpr int64_t kFactorBytes = sizeof(float);

DType kernel_type(at::ScalarType type) {
  return type == at::kBFloat16 ? DType::kBF16 : DType::kF16;
}

}  // namespace

bool can_be_coded(at::ScalarType type, int64_t bytes) {
  return (type == at::kBFloat16 || type == at::kHalf) &&
         bytes % (2 * kRows * kernels::kScaleBlock) == 0;
}

at::Tensor fp8_coded(const at::Tensor& numbers) {
  const int64_t count = numbers.numel();
  KINORA_CHECK(can_be_coded(numbers.scalar_type(), static_cast<int64_t>(numbers.nbytes())) &&
                   numbers.is_contiguous(),
               kShape, "[fp8] codes are of contiguous bf16 or fp16 numbers, a multiple of ",
               kRows * kernels::kScaleBlock, ", got ", count, " of ", numbers.scalar_type());
  const int64_t blocks = count / kernels::kScaleBlock;
  at::Tensor codes = at::empty({count + blocks * kFactorBytes}, numbers.options().dtype(at::kByte));
  if (codes.is_meta()) {
    return codes;
  }
  kernels::BlockQuantise call;
  call.data = codes.data_ptr();
  call.factors = reinterpret_cast<float*>(codes.data_ptr<uint8_t>() + count);
  if (numbers.is_cuda()) {
    cuda::block_quantise(numbers.view({blocks, kernels::kScaleBlock}), call);
  } else {
    call.rows = blocks;
    call.width = kernels::kScaleBlock;
    call.type = kernel_type(numbers.scalar_type());
    call.in = numbers.const_data_ptr();
    kernels::block_quantise(call);
  }
  return codes;
}

at::Tensor fp8_decoded(const at::Tensor& codes, at::ScalarType type) {
  const int64_t count =
      codes.numel() / (kernels::kScaleBlock + kFactorBytes) * kernels::kScaleBlock;
  at::Tensor bytes = at::empty({2 * count}, codes.options());
  if (bytes.is_meta()) {
    return bytes;
  }
  kernels::BlockSums call;
  call.sums = call.terms = 1;
  call.count = call.pitch = count;
  call.data = codes.const_data_ptr();
  call.factors = reinterpret_cast<const float*>(codes.const_data_ptr<uint8_t>() + count);
  call.type = kernel_type(type);
  call.out = bytes.data_ptr();
  if (codes.is_cuda()) {
    cuda::block_sums(call);
  } else {
    kernels::block_sums(call);
  }
  return bytes;
}

}  // namespace kinora::ops
