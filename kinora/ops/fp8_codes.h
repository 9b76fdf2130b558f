#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::ops {

/// Numbers of 16 bits as E4M3 codes with an fp32 factor for each 128 (kernels::BlockQuantise), in
/// half of the memory: for what is to be near to what it was, such as activations that wait for
/// backward.

/// Whether `bytes` of such numbers can be: bf16 or fp16, whole rows of what the kernel takes.
[[nodiscard]] bool can_be_coded(at::ScalarType type, int64_t bytes);

/// uint8 [33 n / 32]: the codes of `numbers` [n], then their factors.
[[nodiscard]] at::Tensor fp8_coded(const at::Tensor& numbers);

/// The bytes, uint8 [2 n], of the numbers of `type` that such codes stand for.
[[nodiscard]] at::Tensor fp8_decoded(const at::Tensor& codes, at::ScalarType type);

}  // namespace kinora::ops
