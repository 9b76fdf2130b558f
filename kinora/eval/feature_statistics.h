#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "kinora/comm/group.h"

/// Mean and covariance of features, and the distance of two such Gaussians.
namespace kinora::eval {

/// What Frechet distances compare.
struct Gaussian {
  at::Tensor mean;        ///< float64 [D]
  at::Tensor covariance;  ///< float64 [D, D]
  int64_t count = 0;      ///< samples that it is of; 0: not known
};

/// Sums up features row by row, in double, in blocks that have their own means (Chan, Golub and
/// LeVeque 1979): means far from zero cost no digits. How rows are divided into calls changes no
/// bit of the result.
class FeatureStatistics {
 public:
  explicit FeatureStatistics(int64_t dim);

  /// features: [B, D] of any floating type, on any device. kShape for others.
  void add(const at::Tensor& features);

  /// Adds those of all ranks of a group, of whose features each has added some, rank by rank. All
  /// ranks call it.
  void add_all(const comm::Group& group, at::Device device);

  [[nodiscard]] int64_t count() const { return count_ + num_pending_; }

  /// The covariance is over count - 1, as numpy.cov has it. kConfig for fewer than 2 samples, and
  /// for features that are not finite.
  [[nodiscard]] Gaussian gaussian();

 private:
  void add_pending();
  /// Counts rows whose products are in scatter_ already.
  void join(const at::Tensor& mean, int64_t count);

  int64_t dim_;
  int64_t count_ = 0;  ///< in mean_ and scatter_
  int64_t num_pending_ = 0;
  at::Tensor mean_;     ///< [D]
  at::Tensor scatter_;  ///< [D, D]: sums of products of differences from the mean
  at::Tensor pending_;  ///< rows of the block that is not full yet
};

/// |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)) (Dowson and Landau 1982), by the eigenvalues of
/// S1^(1/2) S2 S1^(1/2), which has those of S1 S2 and stays symmetric: no complex numbers and no
/// term to add where covariances are singular. kShape unless both are of one dim.
[[nodiscard]] double frechet_distance(const Gaussian& a, const Gaussian& b);

}  // namespace kinora::eval
