#include "kinora/optim/orthogonalise.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kinora/ops/orthogonal.h"

namespace kinora::optim {
namespace {

/// A matrix among the buckets of a window.
struct Matrix {
  size_t bucket = 0;
  const Slot* slot = nullptr;

  [[nodiscard]] int64_t rows() const { return slot->shape.front(); }
  [[nodiscard]] int64_t columns() const { return slot->numel / rows(); }
  [[nodiscard]] double macs() const {
    return ops::orthogonal_macs(static_cast<double>(rows()), static_cast<double>(columns()));
  }
  /// The root mean square of an orthogonal matrix is 1 / sqrt(max(rows, columns)), that of AdamW's
  /// steps about 0.2 learning rates.
  [[nodiscard]] double scale() const {
    return 0.2 * std::sqrt(static_cast<double>(std::max(rows(), columns())));
  }
  [[nodiscard]] at::Tensor of(const at::Tensor& whole_bucket) const {
    return whole_bucket.narrow(0, slot->offset, slot->numel).view({rows(), columns()});
  }
};

/// Buckets whose directions are gathered at once, and their matrices.
struct Window {
  std::vector<const Bucket*> buckets;
  std::vector<Matrix> matrices;
};

/// Neighbouring buckets, until they have a matrix for every rank.
std::vector<Window> windows_of(const Arena& arena) {
  std::vector<Window> windows(1);
  for (const Bucket& bucket : arena.buckets()) {
    if (std::cmp_greater_equal(windows.back().matrices.size(),
                               arena.options().sharding.group.size())) {
      windows.emplace_back();
    }
    Window& window = windows.back();
    if (std::ranges::any_of(bucket.slots, &Slot::is_matrix)) {
      window.buckets.push_back(&bucket);
    }
    for (const Slot& slot : bucket.slots) {
      if (slot.is_matrix) {
        window.matrices.push_back({window.buckets.size() - 1, &slot});
      }
    }
  }
  return windows;
}

/// Which rank works on each matrix: the largest first, each for who has least to do.
std::vector<int64_t> owners_of(const std::vector<Matrix>& matrices, int64_t ranks) {
  std::vector<size_t> order(matrices.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return matrices[i].macs(); });
  std::vector<double> load(static_cast<size_t>(ranks));
  std::vector<int64_t> owners(matrices.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += matrices[i].macs();
    owners[i] = least - load.begin();
  }
  return owners;
}

void orthogonalise_window(const Window& window, const Arena& arena) {
  const comm::Group& group = arena.options().sharding.group;
  std::vector<at::Tensor> wholes;
  for (const Bucket* bucket : window.buckets) {
    const at::Tensor own = bucket->grad.to(ops::orthogonal_type(bucket->grad.device()));
    wholes.push_back(at::empty({bucket->numel}, own.options()));
    group.all_gather(wholes.back(), own);
  }
  const std::vector<int64_t> owners = owners_of(window.matrices, group.size());
  for (size_t i = 0; i < window.matrices.size(); ++i) {
    const at::Tensor matrix = window.matrices[i].of(wholes[window.matrices[i].bucket]);
    if (owners[i] == group.rank()) {
      matrix.copy_(ops::orthogonal(matrix));
    } else {
      matrix.zero_();  // so that sums are what the owner has
    }
  }
  std::vector<at::Tensor> slices;
  for (size_t i = 0; i < wholes.size(); ++i) {
    slices.push_back(at::empty({window.buckets[i]->slice_numel}, wholes[i].options()));
    group.reduce_scatter(slices.back(), wholes[i]);
  }
  for (const Matrix& matrix : window.matrices) {
    const Bucket& bucket = *window.buckets[matrix.bucket];
    const Arena::Part part = arena.own_part(matrix.slot->path, Role::grad());
    if (part.values.numel() > 0) {
      const int64_t begin = matrix.slot->offset + part.begin - bucket.slice_begin;
      part.values.copy_(slices[matrix.bucket].narrow(0, begin, part.values.numel()));
      part.values.mul_(matrix.scale());
    }
  }
}

}  // namespace

bool is_matrix(at::IntArrayRef shape) {
  return shape.size() > 1 && shape.front() > 1 && c10::multiply_integers(shape) > shape.front();
}

bool is_matrix(const nn::Parameter& parameter) {
  return !parameter.fp32_island && is_matrix(at::IntArrayRef(parameter.shape));
}

double orthogonalise_macs(const std::vector<nn::NamedParameter>& parameters) {
  double macs = 0.0;
  for (const auto& [path, parameter] : parameters) {
    if (is_matrix(*parameter) && !parameter->frozen) {
      const auto rows = static_cast<double>(parameter->shape.front());
      macs += ops::orthogonal_macs(rows, static_cast<double>(parameter->numel()) / rows);
    }
  }
  return macs;
}

void orthogonalise(const Arena& arena) {
  for (const Window& window : windows_of(arena)) {
    if (arena.options().sharding.divides()) {
      orthogonalise_window(window, arena);
      continue;
    }
    for (const Matrix& matrix : window.matrices) {
      const at::Tensor direction = matrix.of(window.buckets[matrix.bucket]->grad);
      direction.copy_(ops::orthogonal(direction)).mul_(matrix.scale());
    }
  }
}

}  // namespace kinora::optim
