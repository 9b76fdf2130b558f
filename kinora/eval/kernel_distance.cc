#include "kinora/eval/kernel_distance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cstdint>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

constexpr int64_t kKernelRows = 1024;

at::Tensor kernel(const at::Tensor& products, int64_t dim) {
  return (products / static_cast<double>(dim) + 1.0).pow(3);
}

/// Sum of the kernels of all pairs of rows.
double kernel_sum(const at::Tensor& a, const at::Tensor& b) {
  double sum = 0.0;
  for (int64_t first = 0; first < a.size(0); first += kKernelRows) {
    const at::Tensor rows = a.narrow(0, first, std::min(kKernelRows, a.size(0) - first));
    sum += kernel(at::matmul(rows, b.transpose(0, 1)), a.size(1)).sum().item<double>();
  }
  return sum;
}

/// Mean of the kernels of all pairs of different rows.
double mean_within(const at::Tensor& a) {
  const auto count = static_cast<double>(a.size(0));
  const double self = kernel(a.square().sum(1), a.size(1)).sum().item<double>();
  return (kernel_sum(a, a) - self) / (count * (count - 1.0));
}

}  // namespace

double kernel_distance(const at::Tensor& samples, const at::Tensor& reference) {
  for (const at::Tensor* features : {&samples, &reference}) {
    KINORA_CHECK(features->dim() == 2 && features->is_floating_point() &&
                     features->size(1) == samples.size(-1) && features->size(0) >= 2,
                 kShape, "[kernel_distance] features must have shape [N, D] with at least 2 ",
                 "samples, got ", features->sizes(), " ", features->scalar_type());
  }
  const at::Tensor a = samples.to(at::kDouble);
  const at::Tensor b = reference.to(at::kDouble);
  const auto pairs = static_cast<double>(a.size(0)) * static_cast<double>(b.size(0));
  return mean_within(a) + mean_within(b) - 2.0 * kernel_sum(a, b) / pairs;
}

}  // namespace kinora::eval
