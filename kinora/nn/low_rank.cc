#include "kinora/nn/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/linear.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/ops/convolution.h"
#include "kinora/ops/parameter.h"

namespace kinora::nn {
namespace {

constexpr std::string_view kUpdateKeys[] = {".lora_", ".hada_", ".lokr_"};

/// Of the rows of W + s B A, in fp32 or wider.
at::Tensor row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                     double scale) {
  const at::NoGradGuard no_grad;
  const auto type = c10::promoteTypes(weight.scalar_type(), at::kFloat);
  const at::Tensor rows = weight.to(type).flatten(1);
  return (rows + b.to(type).flatten(1).matmul(a.to(type).flatten(1)) * scale).norm(2, 1);  // [out]
}

/// As PyTorch starts weights with rows of `row_elements`.
Init uniform(int64_t row_elements) {
  return {Init::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(row_elements))};
}

/// y of x by [out, in, 1...].
at::Tensor at_each_place(const at::Tensor& x, const at::Tensor& weight) {
  if (weight.dim() == 2) {
    return at::linear(x, weight);
  }
  const auto dims = static_cast<size_t>(weight.dim() - 2);
  return ops::convolve(x, weight, {},
                       {.stride = std::vector<int64_t>(dims, 1),
                        .padding = std::vector<std::array<int64_t, 2>>(dims, {0, 0})});
}

}  // namespace

std::pair<int64_t, int64_t> kronecker_factors(int64_t size, int64_t factor) {
  if (factor > 0 && size % factor == 0) {
    return {factor, size / factor};
  }
  const int64_t most = factor > 0 ? factor : size;
  int64_t smaller = 1;
  for (int64_t divisor = 2; divisor <= most && divisor * divisor <= size; ++divisor) {
    if (size % divisor == 0) {
      smaller = divisor;
    }
  }
  return {smaller, size / smaller};
}

LowRankUpdate::LowRankUpdate(const std::vector<int64_t>& weight_shape,
                             const LowRankOptions& options, bool fp32_island)
    : options_(options), weight_shape_(weight_shape), fp32_island_(fp32_island) {
  const int64_t out = weight_shape.at(0);
  const int64_t in = weight_shape.at(1);
  const int64_t rank = options.rank;
  const std::vector<int64_t> kernel(weight_shape.begin() + 2, weight_shape.end());
  const auto with_kernel = [&kernel](std::vector<int64_t> shape) {
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    return shape;
  };
  const int64_t places = Parameter{.shape = kernel, .init = {}, .value = {}, .grad = {}}.numel();
  switch (options.kind) {
    case UpdateKind::kLora: {
      std::vector<int64_t> b = {out, rank};
      b.resize(weight_shape.size(), 1);
      add("lora_A.weight", with_kernel({rank, in}), uniform(in * places));
      add("lora_B.weight", b, Init::zero());
      if (options.dora) {
        add("lora_magnitude_vector", {out}, Init::one());
      }
      return;
    }
    case UpdateKind::kLoha:
      add("hada_w1_a", {out, rank}, uniform(rank));
      add("hada_w1_b", {rank, in * places}, uniform(in * places));
      add("hada_w2_a", {out, rank}, uniform(rank));
      add("hada_w2_b", {rank, in * places}, Init::zero());
      return;
    case UpdateKind::kLokr: {
      const auto [a, b] = kronecker_factors(out, options.factor);
      const auto [c, d] = kronecker_factors(in, options.factor);
      add("lokr_w1", {a, c}, Init::zero());
      if (2 * rank >= std::max(b, d)) {
        add("lokr_w2", with_kernel({b, d}), uniform(d * places));
      } else {
        add("lokr_w2_a", {b, rank}, uniform(rank));
        add("lokr_w2_b", {rank, d * places}, uniform(d * places));
      }
      return;
    }
  }
  KINORA_UNREACHABLE("[lora] no such kind of update");
}

void LowRankUpdate::add(const std::string& name, const std::vector<int64_t>& shape, Init init) {
  Parameter& parameter = factors_[name];
  parameter = {.shape = shape, .init = init, .fp32_island = fp32_island_, .value = {}, .grad = {}};
  add_parameter(name, parameter);
}

at::Tensor LowRankUpdate::factor(const std::string& name) const {
  const Parameter& parameter = factors_.at(name);
  return ops::with_gradient(parameter.value, parameter.grad);
}

at::Tensor LowRankUpdate::difference() const {
  if (options_.kind == UpdateKind::kLoha) {
    return (factor("hada_w1_a").matmul(factor("hada_w1_b")) *
            factor("hada_w2_a").matmul(factor("hada_w2_b")))
        .view(weight_shape_);
  }
  const at::Tensor w2 = factors_.contains("lokr_w2")
                            ? factor("lokr_w2").flatten(1)
                            : factor("lokr_w2_a").matmul(factor("lokr_w2_b"));
  return at::kron(factor("lokr_w1"), w2).view(weight_shape_);
}

at::Tensor LowRankUpdate::changed(const at::Tensor& x, const Product& product) const {
  if (options_.kind == UpdateKind::kLora) {
    return at_each_place(product(x, factor("lora_A.weight"), {}), factor("lora_B.weight")) *
           options_.scale;
  }
  return product(x, difference() * options_.scale, {});
}

at::Tensor LowRankUpdate::forward(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, const Product& product) const {
  const at::Tensor update = changed(x, product);
  if (!options_.dora) {
    return product(x, weight, bias) + update;
  }
  // Of channels: the last dim of a linear's results, dim 1 of a convolution's.
  std::vector<int64_t> channels(weight_shape_.size() - 1, 1);
  channels.front() = weight_shape_.front();
  const at::Tensor factors = factor("lora_magnitude_vector") /
                             row_norms(weight, factors_.at("lora_A.weight").value,
                                       factors_.at("lora_B.weight").value, options_.scale)
                                 .to(weight.scalar_type());
  const at::Tensor scaled = (product(x, weight, {}) + update) * factors.view(channels);
  return bias.defined() ? scaled + bias.view(channels) : scaled;
}

ops::LowRankWeights LowRankUpdate::weights() const {
  KINORA_CHECK(has_weights(), kConfig,
               "[lora] the fast path computes LoRA alone, no magnitudes (DoRA), LoHa or LoKr. "
               "Hint: model.path=plain");
  const Parameter& a = factors_.at("lora_A.weight");
  const Parameter& b = factors_.at("lora_B.weight");
  return {a.value, b.value, a.grad, b.grad, options_.scale};
}

void LowRankUpdate::divide(Box box) {
  KINORA_CHECK(has_weights(), kConfig,
               "[tensor] ranks can divide the linears of LoRA alone, no magnitudes (DoRA), LoHa or "
               "LoKr. Hint: parallel.tensor=1");
  Parameter& a = factors_.at("lora_A.weight");  // [rank, in]
  Parameter& b = factors_.at("lora_B.weight");  // [out, rank]
  Parameter& divided = box.dim == 0 ? b : a;
  Parameter& other = box.dim == 0 ? a : b;
  box.whole = divided.shape;
  divided.box = box;
  divided.shape = box.shape();
  other.is_partial = true;
}

std::optional<std::string> owner_of_update(std::string_view path) {
  for (const std::string_view key : kUpdateKeys) {
    if (const size_t begin = path.find(key); begin != std::string_view::npos) {
      return std::string(path.substr(0, begin));
    }
  }
  return std::nullopt;
}

}  // namespace kinora::nn
