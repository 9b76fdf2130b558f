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

/// direction -1: by the negative angles.
void turn(const RowRotation& rotation, int64_t row, double direction, std::vector<double>* values) {
  if (rotation.cosine == nullptr) {
    return;
  }
  for (size_t c = 0; c + 1 < values->size(); c += 2) {
    const int64_t place = rotation.place(row, static_cast<int64_t>(c));
    const double cosine = rotation.cosine[place];
    const double sine = direction * rotation.sine[place];
    double& first = (*values)[c];
    double& second = (*values)[c + 1];
    const double turned = first * cosine - second * sine;
    second = first * sine + second * cosine;
    first = turned;
  }
}

}  // namespace

void rms_norm_forward(const RmsNormForward& call) {
  std::vector<double> values(static_cast<size_t>(call.width));
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t x = row_start(row, call.x_stride, call.width);
    const int64_t y = row_start(row, call.y_stride, call.width);
    const double rstd = rstd_of(call.x, x, call.width, call.type, call.epsilon);
    for (int64_t c = 0; c < call.width; ++c) {
      const double weight = call.weight == nullptr ? 1.0 : call.weight[c];
      values[static_cast<size_t>(c)] = load_element(call.x, x + c, call.type) * rstd * weight;
    }
    turn(call.rotation, row, 1.0, &values);
    for (int64_t c = 0; c < call.width; ++c) {
      store_element(call.y, y + c, call.y_type.value_or(call.type),
                    static_cast<float>(values[static_cast<size_t>(c)]));
    }
  }
}

void rms_norm_backward(const RmsNormBackward& call) {
  const auto width = static_cast<size_t>(call.width);
  std::vector<double> dweight(call.dweight == nullptr ? 0 : width);
  std::vector<double> dy(width);
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t x = row_start(row, call.x_stride, call.width);
    const int64_t first_dy = row_start(row, call.dy_stride, call.width);
    const int64_t dx = row_start(row, call.dx_stride, call.width);
    for (size_t c = 0; c < width; ++c) {
      dy[c] = load_element(call.dy, first_dy + static_cast<int64_t>(c), call.type);
    }
    turn(call.rotation, row, -1.0, &dy);
    const double rstd = rstd_of(call.x, x, call.width, call.type, call.epsilon);
    const auto xhat = [&](size_t c) {
      return load_element(call.x, x + static_cast<int64_t>(c), call.type) * rstd;
    };
    const auto g = [&](size_t c) {
      return dy[c] * (call.weight == nullptr ? 1.0 : call.weight[c]);
    };
    double mean = 0.0;
    for (size_t c = 0; c < width; ++c) {
      mean += g(c) * xhat(c) / static_cast<double>(call.width);
    }
    for (size_t c = 0; c < width; ++c) {
      const double gradient = rstd * (g(c) - xhat(c) * mean);
      if (call.dweight != nullptr) {
        dweight[c] += dy[c] * xhat(c);
      }
      store_element(call.dx, dx + static_cast<int64_t>(c), call.type, static_cast<float>(gradient));
    }
  }
  for (size_t c = 0; c < dweight.size(); ++c) {
    call.dweight[c] += static_cast<float>(dweight[c]);
  }
}

}  // namespace kinora::kernels
