#include "kinora/train/micro_batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "kinora/inference/conditions.h"

namespace kinora::train {
namespace {

/// function(tensor) of each tensor that is defined.
template <typename Function>
MicroBatch of_each(const MicroBatch& batch, const Function& function) {
  const auto of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? function(tensor) : at::Tensor();
  };
  MicroBatch result{.images = of(batch.images),
                    .sample_index = of(batch.sample_index),
                    .conditions = {},
                    .mask = of(batch.mask)};
  for (const auto& [name, tensor] : diffusion::kConditions) {
    result.conditions.*tensor = of(batch.conditions.*tensor);
  }
  return result;
}

}  // namespace

MicroBatch micro_batch_of(const data::Batch& batch, const models::ModelConfig& model) {
  MicroBatch inputs{.images = batch.images,
                    .sample_index = batch.sample_index,
                    .conditions = inference::conditions_of(batch, model),
                    .mask = batch.mask};
  inputs.conditions.given = batch.given;
  return inputs;
}

at::Tensor place_weights(const at::Tensor& mask, const at::Tensor& x0) {
  if (!mask.defined()) {
    return {};
  }
  constexpr double kWhite = 255.0;
  const at::Tensor weights =
      mask.to(x0.device(), /*non_blocking=*/true).to(at::kFloat) / kWhite;  // [B, 1, H, W]
  return at::adaptive_avg_pool2d(weights, x0.sizes().slice(2));
}

MicroBatch narrow(const MicroBatch& batch, int64_t first, int64_t size) {
  return of_each(batch, [&](const at::Tensor& tensor) { return tensor.narrow(0, first, size); });
}

bool same_shapes(const MicroBatch& left, const MicroBatch& right) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() &&
           (!a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type()));
  };
  return same(left.images, right.images) && same(left.mask, right.mask) &&
         same(left.sample_index, right.sample_index) &&
         std::ranges::all_of(diffusion::kConditions, [&](const auto& condition) {
           return same(left.conditions.*condition.tensor, right.conditions.*condition.tensor);
         });
}

int64_t num_bytes(const MicroBatch& batch) {
  int64_t sum = 0;
  (void)of_each(batch, [&](const at::Tensor& tensor) {
    sum += static_cast<int64_t>(tensor.nbytes());
    return tensor;
  });
  return sum;
}

MicroBatch empty_like(const MicroBatch& batch, at::Device device) {
  return of_each(batch, [&](const at::Tensor& tensor) {
    return at::empty_like(tensor, tensor.options().device(device).pinned_memory(false));
  });
}

void copy(const MicroBatch& from, const MicroBatch& to) {
  const auto copy_one = [](const at::Tensor& source, const at::Tensor& target) {
    if (source.defined()) {
      target.copy_(source, /*non_blocking=*/true);
    }
  };
  copy_one(from.images, to.images);
  copy_one(from.mask, to.mask);
  copy_one(from.sample_index, to.sample_index);
  for (const auto& [name, tensor] : diffusion::kConditions) {
    copy_one(from.conditions.*tensor, to.conditions.*tensor);
  }
}

}  // namespace kinora::train
