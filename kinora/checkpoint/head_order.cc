#include "kinora/checkpoint/head_order.h"

namespace kinora::checkpoint {
namespace {

/// Of each `head` rows, which are a matrix of so many columns, the transposed one.
at::Tensor transposed(const at::Tensor& values, int64_t head, int64_t columns) {
  return values.reshape({values.size(0) / head, head / columns, columns, -1})
      .transpose(1, 2)
      .reshape(values.sizes());
}

constexpr int64_t kKinds = 3;  // queries, keys, values

}  // namespace

at::Tensor half_split(const at::Tensor& values, int64_t head) {
  return transposed(values, head, 2);
}

at::Tensor interleaved(const at::Tensor& values, int64_t head) {
  return transposed(values, head, head / 2);
}

at::Tensor packed_by_head(const at::Tensor& values, int64_t head) {
  return values.reshape({kKinds, -1, head, values.numel() / values.size(0)})
      .transpose(0, 1)
      .reshape(values.sizes());
}

at::Tensor packed_by_kind(const at::Tensor& values, int64_t head) {
  return values.reshape({-1, kKinds, head, values.numel() / values.size(0)})
      .transpose(0, 1)
      .reshape(values.sizes());
}

}  // namespace kinora::checkpoint
