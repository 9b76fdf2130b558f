#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::eval {

/// How two sets of samples cover each other.
struct ManifoldScores {
  double precision = 0.0;  ///< share of the samples within the reference's manifold
  double recall = 0.0;     ///< share of the reference within the samples' manifold
  double density = 0.0;    ///< balls of the reference around a sample, over k; may exceed 1
  double coverage = 0.0;   ///< share of the reference whose ball has a sample in it
};

/// Improved precision and recall (Kynkaanniemi et al. 2019), density and coverage (Naeem et al.
/// 2020). A set's manifold is the union of balls around its features, each as large as the distance
/// to the k-th nearest other one. Distances are computed in double by blocks: memory grows with N,
/// time with N^2.
///
/// samples, reference: features [N, D], [M, D] of any floating type. kShape unless of one D and
/// both with more than k rows.
[[nodiscard]] ManifoldScores manifold_scores(const at::Tensor& samples, const at::Tensor& reference,
                                             int64_t k = 3);

}  // namespace kinora::eval
