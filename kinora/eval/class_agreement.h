#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::eval {

/// How often a classifier sees the class that a sample should show.
struct ClassAgreement {
  int64_t num_right = 0;
  int64_t num_samples = 0;
};

/// logits: [N, K]; labels: int64 [N]. kConfig where a label is not known (-1) or not below K.
[[nodiscard]] ClassAgreement class_agreement(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace kinora::eval
