#include "kinora/ops/linear_weights.h"

#include <algorithm>
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

/// Undefined where `tensor` is.
at::Tensor part(const at::Tensor& tensor, int64_t dim, int64_t first, int64_t count) {
  return tensor.defined() ? tensor.narrow(dim, first, count) : tensor;
}

}  // namespace

LinearWeights some_outputs(const LinearWeights& linear, int64_t first, int64_t count) {
  LinearWeights result{.weight = part(linear.weight, 0, first, count),
                       .bias = part(linear.bias, 0, first, count),
                       .weight_grad = part(linear.weight_grad, 0, first, count),
                       .bias_grad = part(linear.bias_grad, 0, first, count)};
  result.free_columns = linear.free_columns;
  result.free_rows = first + count == linear.weight.size(0) ? linear.free_rows : 0;
  for (const LowRankWeights& update : linear.updates) {
    const int64_t begin = std::max(first, update.first_row);
    const int64_t end = std::min(first + count, update.first_row + update.rows());
    if (begin < end) {
      LowRankWeights own = update;
      own.b = part(update.b, 0, begin - update.first_row, end - begin);
      own.b_grad = part(update.b_grad, 0, begin - update.first_row, end - begin);
      own.first_row = begin - first;
      result.updates.push_back(std::move(own));
    }
  }
  return result;
}

LinearWeights some_inputs(const LinearWeights& linear, int64_t first, int64_t count,
                          bool has_bias) {
  LinearWeights result{.weight = part(linear.weight, 1, first, count),
                       .bias = has_bias ? linear.bias : at::Tensor(),
                       .weight_grad = part(linear.weight_grad, 1, first, count),
                       .bias_grad = has_bias ? linear.bias_grad : at::Tensor()};
  result.free_columns = first + count == linear.weight.size(1) ? linear.free_columns : 0;
  result.free_rows = linear.free_rows;
  for (LowRankWeights update : linear.updates) {
    update.a = part(update.a, 1, first, count);
    update.a_grad = part(update.a_grad, 1, first, count);
    result.updates.push_back(std::move(update));
  }
  return result;
}

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
        before = {.weight = joined(before.weight, next.weight),
                  .bias = joined(before.bias, next.bias),
                  .weight_grad = joined(before.weight_grad, next.weight_grad),
                  .bias_grad = joined(before.bias_grad, next.bias_grad),
                  .number = before.number,
                  .updates = std::move(updates)};
        continue;
      }
    }
    merged.push_back(next);
  }
  return merged;
}

}  // namespace kinora::ops
