#include "kinora/comm/transport.h"

#include <ATen/ops/empty_like.h>

namespace kinora::comm {

at::Tensor Transport::reshard(const Call& call, int64_t size, const at::Tensor& x, int64_t split,
                              int64_t joined) {
  const at::Tensor sent = x.unflatten(split, {size, x.size(split) / size})
                              .movedim(split, 0)
                              .contiguous();  // [W, part of x]
  const at::Tensor received = at::empty_like(sent);
  all_to_all(call, received, sent, /*async=*/false).wait();
  return received.movedim(0, joined).flatten(joined, joined + 1);
}

}  // namespace kinora::comm
