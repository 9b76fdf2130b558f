#include "kinora/eval/manifold.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

constexpr int64_t kDistanceRows = 1024;  // of distances at once: with 50,000 columns 400 MB
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Features of a set, about a centre that both sets share, which keeps digits in distances.
struct Points {
  at::Tensor rows;     ///< float64 [N, D]
  at::Tensor squares;  ///< [N]: of their lengths
};

Points points(const at::Tensor& features, const at::Tensor& centre) {
  const at::Tensor rows = features.to(at::kDouble) - centre;
  return {.rows = rows, .squares = rows.square().sum(1)};
}

/// Calls `use` with the squared distances [rows, all of b] of blocks of rows of `a`, which begin at
/// row `first`.
void for_distances(const Points& a, const Points& b,
                   const std::function<void(int64_t first, at::Tensor& distances)>& use) {
  for (int64_t first = 0; first < a.rows.size(0); first += kDistanceRows) {
    const int64_t count = std::min(kDistanceRows, a.rows.size(0) - first);
    at::Tensor distances =
        at::matmul(a.rows.narrow(0, first, count), b.rows.transpose(0, 1)).mul_(-2.0);
    distances.add_(a.squares.narrow(0, first, count).unsqueeze(1)).add_(b.squares);
    distances.clamp_min_(0.0);
    use(first, distances);
  }
}

/// Squared distance of each point to the k-th nearest other one, [N].
at::Tensor radii(const Points& all, int64_t k) {
  std::vector<at::Tensor> parts;
  for_distances(all, all, [&](int64_t first, at::Tensor& distances) {
    distances.diagonal(first).fill_(kInfinite);
    const auto nearest = at::topk(distances, k, 1, /*largest=*/false, /*sorted=*/true);
    parts.push_back(std::get<0>(nearest).select(1, k - 1).clone());
  });
  return at::cat(parts);
}

}  // namespace

ManifoldScores manifold_scores(const at::Tensor& samples, const at::Tensor& reference, int64_t k) {
  for (const at::Tensor* features : {&samples, &reference}) {
    KINORA_CHECK(features->dim() == 2 && features->is_floating_point() &&
                     features->size(1) == samples.size(-1) && features->size(0) > k,
                 kShape, "[manifold] features must have shape [N, D] with more than ", k,
                 " samples, got ", features->sizes(), " ", features->scalar_type());
  }
  const at::Tensor centre = reference.to(at::kDouble).mean(0);
  const Points of_samples = points(samples, centre);
  const Points of_reference = points(reference, centre);
  const at::Tensor sample_radii = radii(of_samples, k);
  const at::Tensor reference_radii = radii(of_reference, k);

  const int64_t num_reference = reference.size(0);
  double num_precise = 0.0;
  double num_balls = 0.0;
  at::Tensor nearest = at::full({num_reference}, kInfinite, of_samples.rows.options());
  at::Tensor is_recalled = at::full({num_reference}, false, at::kBool).to(samples.device());
  for_distances(of_samples, of_reference, [&](int64_t first, at::Tensor& distances) {
    const at::Tensor is_within = distances <= reference_radii;
    num_precise += static_cast<double>(is_within.any(1).sum().item<int64_t>());
    num_balls += static_cast<double>(is_within.sum().item<int64_t>());
    nearest = at::minimum(nearest, distances.amin(0));
    const at::Tensor own = sample_radii.narrow(0, first, distances.size(0)).unsqueeze(1);
    is_recalled.logical_or_((distances <= own).any(0));
  });
  const auto num_samples = static_cast<double>(samples.size(0));
  const auto share = [&](const at::Tensor& is_true) {
    return static_cast<double>(is_true.sum().item<int64_t>()) / static_cast<double>(num_reference);
  };
  return {.precision = num_precise / num_samples,
          .recall = share(is_recalled),
          .density = num_balls / (static_cast<double>(k) * num_samples),
          .coverage = share(nearest <= reference_radii)};
}

}  // namespace kinora::eval
