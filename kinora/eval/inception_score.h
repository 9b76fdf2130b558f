#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::eval {

/// Over the parts that samples were divided into.
struct InceptionScore {
  double mean = 0.0;
  double std = 0.0;  ///< over count, as numpy.std has it
};

/// exp of the mean KL divergence between the class distributions of samples and their marginal
/// (Salimans et al. 2016), over `num_splits` parts of nearly equal size; part i holds the samples
/// i, i + num_splits, ...: sets that are ordered by class then have all classes in all parts.
/// logits: [N, K], of any floating type, before softmax. kShape for others and for fewer samples
/// than parts.
[[nodiscard]] InceptionScore inception_score(const at::Tensor& logits, int64_t num_splits = 10);

}  // namespace kinora::eval
