#include "kinora/ops/linear_weights.h"

#include <utility>

namespace kinora::ops {
namespace {

/// Whether `next` starts in memory where `before` ends; both undefined counts as yes.
bool adjoins(const at::Tensor& before, const at::Tensor& next) {
  if (!before.defined() || !next.defined()) {
    return before.defined() == next.defined();
  }
  return before.is_contiguous() && next.is_contiguous() && before.is_alias_of(next) &&
         next.storage_offset() == before.storage_offset() + before.numel();
}

/// `before` and the rows right behind it.
at::Tensor joined(const at::Tensor& before, const at::Tensor& next) {
  if (!before.defined()) {
    return before;
  }
  std::vector<int64_t> shape = before.sizes().vec();
  shape[0] += next.size(0);
  return before.detach().as_strided(shape, before.strides());
}

}  // namespace

std::vector<LinearWeights> merge_adjacent(const std::vector<LinearWeights>& linears) {
  std::vector<LinearWeights> merged;
  for (const LinearWeights& next : linears) {
    if (!merged.empty()) {
      LinearWeights& before = merged.back();
      if (adjoins(before.weight, next.weight) && adjoins(before.bias, next.bias) &&
          adjoins(before.weight_grad, next.weight_grad) &&
          adjoins(before.bias_grad, next.bias_grad)) {
        std::vector<LowRankWeights> updates = std::move(before.updates);
        for (LowRankWeights update : next.updates) {
          update.first_row += before.weight.size(0);
          updates.push_back(std::move(update));
        }
        before = {joined(before.weight, next.weight),
                  joined(before.bias, next.bias),
                  joined(before.weight_grad, next.weight_grad),
                  joined(before.bias_grad, next.bias_grad),
                  before.number,
                  std::move(updates)};
        continue;
      }
    }
    merged.push_back(next);
  }
  return merged;
}

}  // namespace kinora::ops
