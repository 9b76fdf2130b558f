#include "kinora/optim/distance.h"

#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

void sum_distance(const Arena& arena, const at::Tensor& control) {
  const Sharding& sharding = arena.options().sharding;
  const at::Tensor sums = ops::distance_sums_of(control);
  for (const Bucket& bucket : arena.buckets()) {
    sums.select(0, 0).add_(bucket.grad.sum());
    sums.select(0, 1).add_(ops::norm_of(bucket.grad_sum, 1));
  }
  if (sharding.divides()) {
    const at::Tensor over_ranks = sums.to(at::kFloat);  // what groups can add
    sharding.group.all_reduce(over_ranks);
    sums.copy_(over_ranks);
  }
}

}  // namespace kinora::optim
