#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/orthogonal.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace {

// Jordan's, of the highest slope at 0.
constexpr int kSteps = 5;
constexpr double kFirst = 3.4445;
constexpr double kThird = -4.7750;
constexpr double kFifth = 2.0315;
constexpr double kSmallestNorm = 1e-7;

}  // namespace

at::ScalarType orthogonal_type(at::Device device) {
  return device.is_cuda() ? at::kBFloat16 : at::kFloat;
}

at::Tensor orthogonal(const at::Tensor& matrix) {
  KINORA_CHECK(matrix.dim() == 2, kShape, "[muon] a matrix must have 2 dims, got ", matrix.dim());
  const bool is_tall = matrix.size(0) > matrix.size(1);
  // A copy, which lies the same way wherever the matrix lay.
  at::Tensor x = matrix.to(orthogonal_type(matrix.device()), /*non_blocking=*/false, /*copy=*/true);
  x = is_tall ? x.t() : x;                    // [m, n], m <= n
  x.div_(x.norm().clamp_min(kSmallestNorm));  // so that no singular value is above 1
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor square = at::mm(x, x.t());  // [m, m]
    const at::Tensor change = at::addmm(square, square, square, kThird, kFifth);
    x = at::addmm(x, change, x, kFirst);
  }
  return is_tall ? x.t() : x;
}

double orthogonal_macs(double rows, double columns) {
  const double m = std::min(rows, columns);
  const double n = std::max(rows, columns);
  return kSteps * (2.0 * m * m * n + m * m * m);
}

}  // namespace kinora::ops
