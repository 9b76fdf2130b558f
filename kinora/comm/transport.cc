#include "kinora/comm/transport.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

namespace kinora::comm {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    default:
      return DType::kF32;
  }
}

at::Tensor Transport::reshard(const Call& call, int64_t size, const at::Tensor& x, int64_t split,
                              int64_t joined) {
  const at::Tensor sent = x.unflatten(split, {size, x.size(split) / size})
                              .movedim(split, 0)
                              .contiguous();  // [W, part of x]
  const at::Tensor received = at::empty_like(sent);
  all_to_all(call, received, sent, /*async=*/false).wait();
  return received.movedim(0, joined).flatten(joined, joined + 1);
}

at::Tensor Transport::reshard_together(const Call& call, int64_t size,
                                       const std::vector<at::Tensor>& parts, int64_t split,
                                       int64_t joined) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& part : parts) {
    all.push_back(reshard(call, size, part, split, joined));
  }
  return at::cat(all, joined);
}

std::vector<at::Tensor> Transport::reshard_apart(const Call& call, int64_t size,
                                                 const at::Tensor& whole,
                                                 const std::vector<int64_t>& sizes, int64_t split,
                                                 int64_t joined) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : whole.split_with_sizes(sizes, split)) {
    parts.push_back(reshard(call, size, part, split, joined));
  }
  return parts;
}

}  // namespace kinora::comm
