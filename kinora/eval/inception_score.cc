#include "kinora/eval/inception_score.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>

#include <cmath>

#include "kinora/core/error.h"

namespace kinora::eval {

InceptionScore inception_score(const at::Tensor& logits, int64_t num_splits) {
  KINORA_CHECK(logits.dim() == 2 && logits.is_floating_point() && num_splits >= 1 &&
                   logits.size(0) >= num_splits,
               kShape, "[inception_score] logits must have shape [N, K] with at least ", num_splits,
               " samples, one a part, got ", logits.sizes(), " ", logits.scalar_type());
  double sum = 0.0;
  double squares = 0.0;
  for (int64_t split = 0; split < num_splits; ++split) {
    const at::Tensor part = logits.slice(0, split, std::nullopt, num_splits).to(at::kDouble);
    const at::Tensor log_p = at::log_softmax(part, 1);
    const at::Tensor p = log_p.exp();
    // p log p is 0 where p underflows, and so then is the marginal's share in it.
    const at::Tensor log_marginal = p.mean(0).clamp_min(1e-300).log();
    const double score = std::exp((p * (log_p - log_marginal)).sum(1).mean().item<double>());
    sum += score;
    squares += score * score;
  }
  const auto count = static_cast<double>(num_splits);
  const double mean = sum / count;
  return {.mean = mean, .std = std::sqrt(std::max(squares / count - mean * mean, 0.0))};
}

}  // namespace kinora::eval
