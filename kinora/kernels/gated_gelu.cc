#include "kinora/kernels/gated_gelu.h"

#include <cmath>
#include <numbers>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// The share of a standard normal distribution below v.
double share_below(double v) {
  return 0.5 * (1.0 + std::erf(v / std::numbers::sqrt2));
}

double density(double v) {
  return std::exp(-0.5 * v * v) / std::sqrt(2.0 * std::numbers::pi);
}

}  // namespace

void gated_gelu_forward(const GatedGeluForward& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      const int64_t i = 2 * row * call.width + column;
      const double u = load_element(call.uv, i, call.type);
      const double v = load_element(call.uv, i + call.width, call.type);
      store_element(call.g, row * call.width + column, call.type,
                    static_cast<float>(u * v * share_below(v)));
    }
  }
}

void gated_gelu_backward(const GatedGeluBackward& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      const int64_t i = 2 * row * call.width + column;
      const double u = load_element(call.uv, i, call.type);
      const double v = load_element(call.uv, i + call.width, call.type);
      const double dg = load_element(call.dg, row * call.width + column, call.type);
      store_element(call.duv, i, call.type, static_cast<float>(dg * v * share_below(v)));
      store_element(call.duv, i + call.width, call.type,
                    static_cast<float>(dg * u * (share_below(v) + v * density(v))));
    }
  }
}

}  // namespace kinora::kernels
