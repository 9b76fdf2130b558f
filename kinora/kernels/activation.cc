#include "kinora/kernels/activation.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

struct ActivationValue {
  double f;
  double derivative;
};

ActivationValue evaluate(Activation function, double u) {
  const bool is_gelu = function == Activation::kGeluTanh;
  const double linear = is_gelu ? 2.0 * std::sqrt(2.0 / std::numbers::pi) : 1.0;
  const double cubic = is_gelu ? linear * 0.044715 : 0.0;
  const double square = std::min(u * u, 1e30);  // 0 times infinity is NaN
  const double sigmoid = 1.0 / (1.0 + std::exp(-u * (linear + cubic * square)));
  return {u * sigmoid, sigmoid + u * sigmoid * (1.0 - sigmoid) * (linear + 3.0 * cubic * square)};
}

}  // namespace

void activation_forward(const ActivationForward& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      const int64_t i = row * call.width + column;
      const auto g =
          static_cast<float>(evaluate(call.function, load_element(call.u, i, call.type)).f);
      if (call.g != nullptr) {
        store_element(call.g, i, call.type, g);
      }
      store_fp8(call.g_fp8, call.rows, call.width, row, column, g);
    }
  }
}

void gated_activation(const GatedActivation& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      const int64_t i = 2 * row * call.width + column;
      const double f = evaluate(call.function, load_element(call.uv, i, call.type)).f;
      store_element(call.g, row * call.g_stride + column, call.type,
                    static_cast<float>(f * load_element(call.uv, i + call.width, call.type)));
    }
  }
}

void activation_backward(const ActivationBackward& call) {
  std::vector<double> sums(static_cast<size_t>(call.bias_grad == nullptr ? 0 : call.width));
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t column = 0; column < call.width; ++column) {
      const int64_t i = row * call.width + column;
      const ActivationValue value = evaluate(call.function, load_element(call.u, i, call.type));
      const auto du = static_cast<float>(load_element(call.dg, i, call.type) * value.derivative);
      if (call.du != nullptr) {
        store_element(call.du, i, call.type, du);
      }
      store_fp8(call.du_fp8, call.rows, call.width, row, column, du);
      if (call.bias_grad != nullptr) {
        sums[static_cast<size_t>(column)] += du;
      }
    }
  }
  for (size_t column = 0; column < sums.size(); ++column) {
    call.bias_grad[column] += static_cast<float>(sums[column]);
  }
}

}  // namespace kinora::kernels
