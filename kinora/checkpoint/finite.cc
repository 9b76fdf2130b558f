#include "kinora/checkpoint/finite.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <cmath>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/optim/held_weights.h"

namespace kinora::checkpoint {
namespace {

/// In one pass without other memory: the least and greatest value are NaN where any value is.
bool is_finite(const at::Tensor& values) {
  if (values.numel() == 0 || values.is_meta()) {
    return true;
  }
  const auto [least, greatest] = at::aminmax(values);
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

/// begin: the place of the first value in the whole tensor.
void check_part(const std::string& name, const at::Tensor& values, int64_t begin,
                const std::filesystem::path& origin) {
  if (!values.is_floating_point() || is_finite(values)) {
    return;
  }
  const at::Tensor wrong = at::isfinite(values).logical_not().flatten().nonzero();
  throw_error(ErrorKind::kIo, "[weights] ", origin.string(), ": tensor ", name, " holds ",
              counted(wrong.size(0), "value that is", "values that are"), " not finite, as ",
              values.scalar_type(), " (first at ", begin + wrong[0].item<int64_t>(),
              "). Hint: the file is damaged or its run broke down; take an earlier checkpoint");
}

}  // namespace

void check_finite(const optim::Arena& arena, optim::Role role,
                  const std::filesystem::path& origin) {
  for (const optim::Bucket& bucket : arena.buckets()) {
    if (is_finite(arena.fetched(bucket.tensor(role)))) {
      continue;
    }
    for (const optim::Slot& slot : bucket.slots) {
      const optim::Arena::Part part = arena.own_part(slot.path, role);
      check_part(slot.path, arena.fetched(part.values), part.begin, origin);
    }
  }
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    if (is_finite(bucket.compute)) {
      continue;
    }
    for (const optim::Slot& slot : bucket.slots) {
      check_part(slot.path, optim::in_order(optim::slot_view(bucket.compute, slot), slot), 0,
                 origin);
    }
  }
  if (const optim::HeldWeights* held = arena.held()) {
    for (const optim::HeldWeights::Weight& weight : held->weights()) {
      // Scales: of groups with a value that is not finite they are not either.
      if (!is_finite(weight.is_coded() ? weight.codes.scales : weight.plain)) {
        check_part(weight.slot.path, held->value(weight.slot.path, at::kFloat), 0, origin);
      }
    }
  }
}

void check_finite(const std::string& name, const at::Tensor& values,
                  const std::filesystem::path& origin) {
  check_part(name, values, 0, origin);
}

}  // namespace kinora::checkpoint
