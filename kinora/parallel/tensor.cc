#include "kinora/parallel/tensor.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>

#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/nn/weight_layer.h"
#include "kinora/parallel/mesh.h"

namespace kinora::parallel {
namespace {

/// "1, 2, 4 or 8".
std::string divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      divisors.push_back(divisor);
    }
  }
  std::ostringstream text;
  for (size_t i = 0; i < divisors.size(); ++i) {
    text << (i == 0 ? "" : i + 1 == divisors.size() ? " or " : ", ") << divisors[i];
  }
  return text.str();
}

}  // namespace

comm::Group tensor_group(const comm::Group& world, int64_t size) {
  KINORA_CHECK(size >= 1 && world.size() % size == 0, kConfig, "[tensor] ", size,
               " ranks that share a model do not divide ", world.size(),
               ". Hint: as many ranks, or a multiple");
  return size == 1 ? comm::Group() : world.split(lines(1, size, world.size()));
}

Divisible divisible(nn::Module& model) {
  Divisible result;
  double divided = 0.0;
  double all = 0.0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    all += static_cast<double>(parameter->numel());
  }
  for (const auto& [path, layer] : model.named_weight_layers()) {
    if (!layer->cut()) {
      continue;
    }
    divided += static_cast<double>(layer->weight.numel());
    for (const nn::Stretch& stretch : layer->cut()->stretches) {
      result.units = std::gcd(result.units, stretch.units);
    }
  }
  result.share = all > 0.0 ? divided / all : 0.0;
  return result;
}

void divide(nn::Module& model, const comm::Group& group) {
  if (group.size() == 1) {
    return;
  }
  const int64_t units = divisible(model).units;
  KINORA_CHECK(units > 0, kConfig, "[tensor] parallel.tensor is ", group.size(),
               ", but no linear of this model can be divided among ranks. Hint: parallel.tensor=1");
  KINORA_CHECK(units % group.size() == 0, kConfig, "[tensor] parallel.tensor is ", group.size(),
               ", which does not divide the heads and the MLP's width of this model. Hint: ",
               divisors_of(units), " do");
  group.use_peer_memory();
  for (const auto& [path, layer] : model.named_weight_layers()) {
    layer->divide(group);
  }
}

void add_partial_gradients(const optim::Arena& arena) {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> sizes;
  for (const optim::Bucket& bucket : arena.buckets()) {
    for (const optim::Slot& slot : bucket.slots) {
      if (!slot.is_partial) {
        continue;
      }
      const at::Tensor part = arena.own_part(slot.path, optim::Role::grad()).values;
      if (part.numel() > 0) {
        parts.push_back(part);
        sizes.push_back(part.numel());
      }
    }
  }
  if (parts.empty()) {
    return;
  }
  const at::Tensor sums = at::cat(parts);
  arena.options().tensor.all_reduce(sums);
  at::_foreach_copy_(parts, sums.split_with_sizes(sizes));
}

}  // namespace kinora::parallel
