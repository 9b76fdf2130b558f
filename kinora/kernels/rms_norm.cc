#include "kinora/kernels/rms_norm.h"

#include <cmath>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {

void rms_norm_forward(const RmsNormForward& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t first = row * call.width;
    double squares = 0.0;
    for (int64_t c = 0; c < call.width; ++c) {
      const double x = load_element(call.x, first + c, call.type);
      squares += x * x;
    }
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(call.width) +
                                        static_cast<double>(call.epsilon));
    for (int64_t c = 0; c < call.width; ++c) {
      const double weight = call.weight == nullptr ? 1.0 : call.weight[c];
      store_element(call.y, first + c, call.y_type.value_or(call.type),
                    static_cast<float>(load_element(call.x, first + c, call.type) * rstd * weight));
    }
    if (call.rstd != nullptr) {
      call.rstd[row] = static_cast<float>(rstd);
    }
  }
}

void rms_norm_backward(const RmsNormBackward& call) {
  std::vector<double> dweight(static_cast<size_t>(call.dweight == nullptr ? 0 : call.width));
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t first = row * call.width;
    const double rstd = call.rstd[row];
    const auto xhat = [&](int64_t c) { return load_element(call.x, first + c, call.type) * rstd; };
    const auto g = [&](int64_t c) {
      return static_cast<double>(load_element(call.dy, first + c, call.type)) *
             (call.weight == nullptr ? 1.0 : call.weight[c]);
    };
    double mean = 0.0;
    for (int64_t c = 0; c < call.width; ++c) {
      mean += g(c) * xhat(c) / static_cast<double>(call.width);
    }
    for (int64_t c = 0; c < call.width; ++c) {
      const double dx = rstd * (g(c) - xhat(c) * mean);
      if (call.dweight != nullptr) {
        dweight[static_cast<size_t>(c)] += load_element(call.dy, first + c, call.type) * xhat(c);
      }
      store_element(call.dx, first + c, call.type, static_cast<float>(dx));
    }
  }
  for (size_t c = 0; c < dweight.size(); ++c) {
    call.dweight[c] += static_cast<float>(dweight[c]);
  }
}

}  // namespace kinora::kernels
