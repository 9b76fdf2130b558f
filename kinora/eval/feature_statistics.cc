#include "kinora/eval/feature_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

// Enough rows for the product to be bound by arithmetic, at 2048 features 16 MiB.
constexpr int64_t kStatisticsRows = 1024;

}  // namespace

FeatureStatistics::FeatureStatistics(int64_t dim)
    : dim_(dim),
      mean_(at::zeros({dim}, at::kDouble)),
      scatter_(at::zeros({dim, dim}, at::kDouble)),
      pending_(at::zeros({kStatisticsRows, dim}, at::kDouble)) {}

void FeatureStatistics::add(const at::Tensor& features) {
  KINORA_CHECK(features.dim() == 2 && features.size(1) == dim_ && features.is_floating_point(),
               kShape, "[statistics] features must have shape [B, ", dim_, "] and be floats, got ",
               features.sizes(), " ", features.scalar_type());
  for (int64_t first = 0; first < features.size(0);) {
    const int64_t rows = std::min(features.size(0) - first, kStatisticsRows - num_pending_);
    pending_.narrow(0, num_pending_, rows).copy_(features.narrow(0, first, rows));
    num_pending_ += rows;
    first += rows;
    if (num_pending_ == kStatisticsRows) {
      add_pending();
    }
  }
}

void FeatureStatistics::add_pending() {
  if (num_pending_ == 0) {
    return;
  }
  const at::Tensor rows = pending_.narrow(0, 0, num_pending_);
  const at::Tensor mean = rows.mean(0);
  rows.sub_(mean);
  scatter_.addmm_(rows.t(), rows);
  join(mean, std::exchange(num_pending_, 0));
}

void FeatureStatistics::join(const at::Tensor& mean, int64_t count) {
  const auto before = static_cast<double>(count_);
  const auto added = static_cast<double>(count);
  const at::Tensor apart = mean - mean_;
  scatter_.add_(at::outer(apart, apart), before * added / (before + added));
  mean_.add_(apart, added / (before + added));
  count_ += count;
}

void FeatureStatistics::add_all(const comm::Group& group, at::Device device) {
  if (group.size() == 1) {
    return;
  }
  add_pending();
  const at::Tensor own =
      at::cat({at::full({1}, static_cast<double>(count_), at::kDouble), mean_, scatter_.flatten()});
  // Groups move bytes of other types than those that they add.
  const at::Tensor bytes = own.view(at::kByte).to(device);
  const at::Tensor all = at::empty({group.size() * bytes.numel()}, bytes.options());
  group.all_gather(all, bytes);
  const at::Tensor states = all.cpu().view(at::kDouble).view({group.size(), own.numel()});
  *this = FeatureStatistics(dim_);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const at::Tensor state = states[rank];
    scatter_.add_(state.narrow(0, 1 + dim_, dim_ * dim_).view({dim_, dim_}));
    join(state.narrow(0, 1, dim_), static_cast<int64_t>(state[0].item<double>()));
  }
}

Gaussian FeatureStatistics::gaussian() {
  add_pending();
  KINORA_CHECK(count_ >= 2, kConfig, "[statistics] a covariance needs at least 2 samples, got ",
               count_);
  KINORA_CHECK(at::isfinite(mean_).all().item<bool>(), kConfig,
               "[statistics] features must be finite, got others");
  return {.mean = mean_.clone(),
          .covariance = scatter_ / static_cast<double>(count_ - 1),
          .count = count_};
}

double frechet_distance(const Gaussian& a, const Gaussian& b) {
  const int64_t dim = a.mean.numel();
  for (const Gaussian* each : {&a, &b}) {
    KINORA_CHECK(each->mean.sizes() == at::IntArrayRef({dim}) &&
                     each->covariance.sizes() == at::IntArrayRef({dim, dim}),
                 kShape, "[frechet] both must have a mean of shape [", dim,
                 "] and a covariance to it, got ", each->mean.sizes(), " and ",
                 each->covariance.sizes(), ". Hint: they may be of different networks");
  }
  const auto [values, vectors] = at::linalg_eigh(a.covariance);
  // Rounding leaves small negative eigenvalues where there is no variance.
  const at::Tensor root =
      at::matmul(vectors * values.clamp_min(0.0).sqrt(), vectors.transpose(0, 1));
  const at::Tensor product = at::matmul(at::matmul(root, b.covariance), root);
  const at::Tensor squares = at::linalg_eigvalsh((product + product.transpose(0, 1)) / 2.0);
  const double trace = squares.clamp_min(0.0).sqrt().sum().item<double>();
  return (a.mean - b.mean).square().sum().item<double>() + a.covariance.trace().item<double>() +
         b.covariance.trace().item<double>() - 2.0 * trace;
}

}  // namespace kinora::eval
