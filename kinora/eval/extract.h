#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "kinora/comm/group.h"
#include "kinora/eval/feature_network.h"
#include "kinora/eval/feature_statistics.h"
#include "kinora/eval/sample_set.h"

namespace kinora::eval {

/// What a network says of a set, in the set's order, on the CPU.
struct FeatureTable {
  at::Tensor features;  ///< float32 [N, D]
  at::Tensor logits;    ///< float32 [N, K]; undefined: the network has no classes
  at::Tensor labels;    ///< int64 [N]; -1: not known
};

struct ExtractOptions {
  int64_t batch = 32;
  at::Device device = at::kCPU;  ///< the network's
  /// Called on every rank with the number of its samples done, 0 at first, and of all its samples.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Computes the features of all samples. The ranks of `group` share whole batches, and every rank
/// gets all features in the set's order, whatever the number of ranks. kConfig for fewer batches
/// than ranks, kShape for samples of different sizes where the network does not resize, and for
/// features that are not finite; errors name the sample.
[[nodiscard]] FeatureTable extract(const SampleSet& set, const FeatureNetwork& network,
                                   const comm::Group& group, const ExtractOptions& options);

/// Mean and covariance of the same features, of which no more than a batch is kept. With several
/// ranks those of extract() but for rounding. Also kConfig for fewer than 2 samples.
[[nodiscard]] Gaussian extract_gaussian(const SampleSet& set, const FeatureNetwork& network,
                                        const comm::Group& group, const ExtractOptions& options);

}  // namespace kinora::eval
