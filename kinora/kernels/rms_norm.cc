#include "kinora/kernels/rms_norm.h"

#include <cmath>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

int64_t row_start(int64_t row, int64_t stride, int64_t width) {
  return row * (stride == 0 ? width : stride);
}

/// Of `width` elements from `first` on.
double rstd_of(const void* x, int64_t first, int64_t width, DType type, float epsilon) {
  double squares = 0.0;
  for (int64_t c = 0; c < width; ++c) {
    const double value = load_element(x, first + c, type);
    squares += value * value;
  }
  return 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(epsilon));
}

}  // namespace

void rms_norm_forward(const RmsNormForward& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t x = row_start(row, call.x_stride, call.width);
    const int64_t y = row_start(row, call.y_stride, call.width);
    const double rstd = rstd_of(call.x, x, call.width, call.type, call.epsilon);
    for (int64_t c = 0; c < call.width; ++c) {
      const double weight = call.weight == nullptr ? 1.0 : call.weight[c];
      store_element(call.y, y + c, call.y_type.value_or(call.type),
                    static_cast<float>(load_element(call.x, x + c, call.type) * rstd * weight));
    }
  }
}

void rms_norm_backward(const RmsNormBackward& call) {
  std::vector<double> dweight(static_cast<size_t>(call.dweight == nullptr ? 0 : call.width));
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t x = row_start(row, call.x_stride, call.width);
    const int64_t dy = row_start(row, call.dy_stride, call.width);
    const int64_t dx = row_start(row, call.dx_stride, call.width);
    const double rstd = rstd_of(call.x, x, call.width, call.type, call.epsilon);
    const auto xhat = [&](int64_t c) { return load_element(call.x, x + c, call.type) * rstd; };
    const auto g = [&](int64_t c) {
      return static_cast<double>(load_element(call.dy, dy + c, call.type)) *
             (call.weight == nullptr ? 1.0 : call.weight[c]);
    };
    double mean = 0.0;
    for (int64_t c = 0; c < call.width; ++c) {
      mean += g(c) * xhat(c) / static_cast<double>(call.width);
    }
    for (int64_t c = 0; c < call.width; ++c) {
      const double gradient = rstd * (g(c) - xhat(c) * mean);
      if (call.dweight != nullptr) {
        dweight[static_cast<size_t>(c)] += load_element(call.dy, dy + c, call.type) * xhat(c);
      }
      store_element(call.dx, dx + c, call.type, static_cast<float>(gradient));
    }
  }
  for (size_t c = 0; c < dweight.size(); ++c) {
    call.dweight[c] += static_cast<float>(dweight[c]);
  }
}

}  // namespace kinora::kernels
