#include "kinora/optim/factored.h"

#include <utility>
#include <vector>

namespace kinora::optim {
namespace {

std::vector<ops::FactoredTensors> tensors_of(const Arena& arena) {
  std::vector<ops::FactoredTensors> parameters;
  for (const Bucket& bucket : arena.buckets()) {
    for (const Slot& slot : bucket.slots) {
      const Arena::Part grad = arena.own_part(slot.path, Role::grad());
      const int64_t rows = slot.is_factored() ? slot.shape.front() : 0;
      ops::FactoredTensors tensors{.rows = rows,
                                   .columns = rows > 0 ? slot.numel / rows : slot.numel,
                                   .grad = grad.values,
                                   .mean = {},
                                   .begin = grad.begin,
                                   .factors = arena.own_part(slot.path, Role::factors()).values,
                                   .instability = {}};
      if (bucket.instability.defined()) {
        tensors.mean = arena.own_part(slot.path, Role::exp_avg()).values;
        tensors.instability = arena.own_part(slot.path, Role::instability()).values;
      }
      parameters.push_back(std::move(tensors));
    }
  }
  return parameters;
}

}  // namespace

FactoredDirections::FactoredDirections(const Arena& arena, const kernels::FactoredRule& rule)
    : rule_(rule), sharding_(arena.options().sharding), table_(tensors_of(arena)) {}

void FactoredDirections::make(const at::Tensor& control) const {
  for (const kernels::FactoredPass pass : kernels::passes_of(rule_.rule)) {
    ops::run_pass(pass, table_, rule_, control);
    if (!sharding_.divides()) {
      continue;
    }
    if (kernels::is_of_means(pass)) {
      sharding_.group.all_reduce(table_.means());
    } else if (pass == kernels::FactoredPass::kMeanDirections) {
      sharding_.group.all_reduce(table_.mean_squares());
    }
  }
}

}  // namespace kinora::optim
