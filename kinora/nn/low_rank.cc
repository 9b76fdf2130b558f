#include "kinora/nn/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/ScalarType.h>

#include <cmath>

#include "kinora/ops/parameter.h"

namespace kinora::nn {
namespace {

at::Tensor trained(const Parameter& parameter) {
  return ops::with_gradient(parameter.value, parameter.grad);
}

/// Of the rows of W + s B A, in fp32 or wider.
at::Tensor row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                     double scale) {
  const at::NoGradGuard no_grad;
  const auto type = c10::promoteTypes(weight.scalar_type(), at::kFloat);
  return (weight.to(type) + b.to(type).matmul(a.to(type)) * scale).norm(2, 1);  // [out]
}

}  // namespace

LowRankUpdate::Factor::Factor(int64_t rows, int64_t columns, Init init, bool fp32_island)
    : weight{.shape = {rows, columns},
             .init = init,
             .fp32_island = fp32_island,
             .value = {},
             .grad = {}} {
  add_parameter("weight", weight);
}

LowRankUpdate::LowRankUpdate(int64_t in_features, int64_t out_features,
                             const LowRankOptions& options, bool fp32_island)
    : scale_(options.scale),
      a_(options.rank, in_features,
         {Init::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(in_features))}, fp32_island),
      b_(out_features, options.rank, Init::zero(), fp32_island) {
  add_child("lora_A", a_);
  add_child("lora_B", b_);
  if (options.dora) {
    magnitude_.emplace(Parameter{.shape = {out_features},
                                 .init = Init::one(),
                                 .fp32_island = fp32_island,
                                 .value = {},
                                 .grad = {}});
    add_parameter("lora_magnitude_vector", *magnitude_);
  }
}

at::Tensor LowRankUpdate::forward(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias) const {
  const at::Tensor update =
      at::linear(at::linear(x, trained(a_.weight)), trained(b_.weight)) * scale_;
  if (!magnitude_) {
    return at::linear(x, weight, bias) + update;
  }
  const at::Tensor factors =
      trained(*magnitude_) /
      row_norms(weight, a_.weight.value, b_.weight.value, scale_).to(weight.scalar_type());
  const at::Tensor scaled = (at::linear(x, weight) + update) * factors;
  return bias.defined() ? scaled + bias : scaled;
}

}  // namespace kinora::nn
