#include "kinora/checkpoint/head_order.h"

namespace kinora::checkpoint {
namespace {

/// Of each `head` rows, which are a matrix of so many columns, the transposed one.
at::Tensor transposed(const at::Tensor& values, int64_t head, int64_t columns) {
  return values.reshape({values.size(0) / head, head / columns, columns, -1})
      .transpose(1, 2)
      .reshape(values.sizes());
}

}  // namespace

at::Tensor half_split(const at::Tensor& values, int64_t head) {
  return transposed(values, head, 2);
}

at::Tensor interleaved(const at::Tensor& values, int64_t head) {
  return transposed(values, head, head / 2);
}

}  // namespace kinora::checkpoint
