#include "kinora/kernels/modulated_norm.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

float rounded(float value, DType type) {
  float bits = 0.0F;  // room for every type
  store_element(&bits, 0, type, value);
  return load_element(&bits, 0, type);
}

float element(const VectorView& view, int64_t vector, int64_t column) {
  const float value = view.data == nullptr ? 0.0F : view.data[vector * view.stride + column];
  return view.table == nullptr ? value : value + view.table[column];
}

/// One vector's sums over its rows, in double; empty where nobody wants them.
struct ColumnTotals {
  std::vector<double> dshift, dscale, dgate, dx;

  explicit ColumnTotals(int64_t width)
      : dshift(static_cast<size_t>(width)),
        dscale(static_cast<size_t>(width)),
        dgate(static_cast<size_t>(width)),
        dx(static_cast<size_t>(width)) {}

  void clear() {
    for (std::vector<double>* sums : {&dshift, &dscale, &dgate, &dx}) {
      std::fill(sums->begin(), sums->end(), 0.0);
    }
  }
};

void store_totals(const ResidualNormBackward& call, const ColumnTotals& totals, int64_t vector) {
  for (int64_t c = 0; c < call.width; ++c) {
    const auto i = static_cast<size_t>(c);
    const int64_t target = vector * call.dvector_stride + c;
    if (call.dshift != nullptr) {
      call.dshift[target] = static_cast<float>(totals.dshift[i]);
    }
    if (call.dscale != nullptr) {
      call.dscale[target] = static_cast<float>(totals.dscale[i]);
    }
    if (call.dgate != nullptr) {
      call.dgate[target] = static_cast<float>(totals.dgate[i]);
    }
    if (call.dbranch_sum != nullptr) {
      call.dbranch_sum[vector * call.width + c] =
          element(call.gate, vector, c) * static_cast<float>(totals.dx[i]);
    }
  }
}

}  // namespace

void residual_norm_forward(const ResidualNormForward& call) {
  const int64_t width = call.width;
  std::vector<float> x(static_cast<size_t>(width));
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t vector = call.rows_of_vectors.of(row);
    double sum = 0.0;
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = row * width + c;
      float value = load_element(call.x, i, call.type);
      if (call.branch != nullptr) {
        value += element(call.gate, vector, c) * load_element(call.branch, i, call.type);
      }
      x[static_cast<size_t>(c)] = value;
      sum += static_cast<double>(value);
      if (call.x_out != nullptr) {
        store_element(call.x_out, i, call.type, value);
      }
    }
    if (call.h == nullptr && !is_wanted(call.h_fp8) && call.mean == nullptr &&
        call.rstd == nullptr) {
      continue;
    }
    assert(call.has_norm || (call.mean == nullptr && call.rstd == nullptr));
    const double mean = call.centres ? sum / static_cast<double>(width) : 0.0;
    double squares = 0.0;
    for (const float value : x) {
      squares += (value - mean) * (value - mean);
    }
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(width) + call.epsilon);
    for (int64_t c = 0; c < width; ++c) {
      const float value = x[static_cast<size_t>(c)];
      const double xhat = (value - mean) * rstd;
      const float h = call.has_norm
                          ? static_cast<float>(xhat * (1.0 + element(call.scale, vector, c)) +
                                               element(call.shift, vector, c))
                          : rounded(value, call.type);
      if (call.h != nullptr) {
        store_element(call.h, row * (call.h_stride > 0 ? call.h_stride : width) + c, call.h_type,
                      h);
      }
      if (is_wanted(call.h_fp8)) {
        store_fp8(call.h_fp8, call.rows, width, row, c, h);
      }
    }
    if (call.mean != nullptr) {
      call.mean[row] = static_cast<float>(mean);
    }
    if (call.rstd != nullptr) {
      call.rstd[row] = static_cast<float>(rstd);
    }
  }
}

void residual_norm_backward(const ResidualNormBackward& call) {
  assert(call.branch != nullptr || call.dgate == nullptr);
  const int64_t width = call.width;
  const auto inverse_width = 1.0 / static_cast<double>(width);
  ColumnTotals totals(width);
  std::vector<double> xhat(static_cast<size_t>(width)), g(static_cast<size_t>(width));
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t vector = call.rows_of_vectors.of(row);
    double mean_g = 0.0, mean_gx = 0.0;
    for (int64_t c = 0; c < width && call.dh != nullptr; ++c) {
      const auto k = static_cast<size_t>(c);
      const double dh = load_element(call.dh, row * width + c, call.dh_type);
      const double x = load_element(call.x_out, row * width + c, call.type);
      xhat[k] = (x - call.mean[row]) * call.rstd[row];
      g[k] = dh * (1.0 + element(call.scale, vector, c));
      mean_g += call.centres ? g[k] * inverse_width : 0.0;
      mean_gx += g[k] * xhat[k] * inverse_width;
      totals.dshift[k] += dh;
      totals.dscale[k] += dh * xhat[k];
    }
    for (int64_t c = 0; c < width; ++c) {
      const auto k = static_cast<size_t>(c);
      const int64_t i = row * width + c;
      double dx = 0.0;
      if (call.dh != nullptr) {
        dx = call.rstd[row] * (g[k] - mean_g - xhat[k] * mean_gx);
      }
      if (call.dx_out != nullptr) {
        dx += load_element(call.dx_out, i, call.type);
      }
      if (call.dx != nullptr) {
        store_element(call.dx, i, call.type, static_cast<float>(dx));
      }
      if (has_branch(call)) {
        if (call.dgate != nullptr) {
          totals.dgate[k] += load_element(call.branch, i, call.type) * dx;
        }
        totals.dx[k] += dx;
        const auto dbranch = element(call.gate, vector, c) * static_cast<float>(dx);
        if (call.dbranch != nullptr) {
          const int64_t stride = call.dbranch_stride > 0 ? call.dbranch_stride : width;
          store_element(call.dbranch, row * stride + c, call.type, dbranch);
        }
        if (is_wanted(call.dbranch_fp8)) {
          store_fp8(call.dbranch_fp8, call.rows, width, row, c, dbranch);
        }
      }
    }
    if (row + 1 == call.rows || call.rows_of_vectors.of(row + 1) != vector) {
      store_totals(call, totals, vector);
      totals.clear();
    }
  }
}

}  // namespace kinora::kernels
