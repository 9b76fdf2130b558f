#include "kinora/optim/trust_ratio.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

void apply_trust_ratios(const Arena& arena) {
  const Sharding& sharding = arena.options().sharding;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> directions;
  for (const Bucket& bucket : arena.buckets()) {
    for (const Slot& slot : bucket.slots) {
      weights.push_back(arena.own_part(slot.path, Role::master()).values);
      directions.push_back(arena.own_part(slot.path, Role::grad()).values);
    }
  }
  const auto count = static_cast<int64_t>(weights.size());
  const auto options = at::TensorOptions(at::kFloat).device(arena.options().device);
  const at::Tensor squares = at::zeros({2, count}, options);  // sums of them; what groups can add
  const auto set = [&squares](int64_t row, size_t i, const at::Tensor& values) {
    if (values.numel() > 0) {
      squares.select(0, row)
          .select(0, static_cast<int64_t>(i))
          .copy_(ops::norm_of(values, 2).square());
    }
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    set(0, i, weights[i]);
    set(1, i, directions[i]);
  }
  if (sharding.divides()) {
    sharding.group.all_reduce(squares);
  }
  const at::Tensor norms = squares.sqrt_();
  const at::Tensor of_weights = norms.select(0, 0);
  const at::Tensor of_directions = norms.select(0, 1);
  const at::Tensor is_zero = of_weights.eq(0).logical_or_(of_directions.eq(0));
  const at::Tensor ratios = of_weights.div(of_directions).masked_fill_(is_zero, 1.0);
  for (size_t i = 0; i < directions.size(); ++i) {
    directions[i].mul_(ratios.select(0, static_cast<int64_t>(i)));
  }
}

}  // namespace kinora::optim
