#include "kinora/kernels/qk_norm_rotary.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// Heads of a row, those of queries first.
int64_t heads_of_row(const QkNormRotary& rule) {
  return (rule.copies_values ? 3 : 2) * rule.heads;
}

/// Where row `row` begins on the far side of attention.
int64_t far_row(const QkNormRotary& rule, int64_t row, int64_t stride, int64_t sample_stride) {
  return rule.rows_per_sample == 0
             ? row * stride
             : row / rule.rows_per_sample * sample_stride + row % rule.rows_per_sample * stride;
}

std::vector<double> load_head(const void* data, int64_t first, const QkNormRotary& rule) {
  std::vector<double> head(static_cast<size_t>(rule.head_dim));
  for (int64_t d = 0; d < rule.head_dim; ++d) {
    head[static_cast<size_t>(d)] = load_element(data, first + d, rule.type);
  }
  return head;
}

void store_head(void* data, int64_t first, const QkNormRotary& rule,
                const std::vector<double>& head) {
  for (int64_t d = 0; d < rule.head_dim; ++d) {
    store_element(data, first + d, rule.type, static_cast<float>(head[static_cast<size_t>(d)]));
  }
}

/// direction -1: by the negative angles.
void turn(const QkNormRotary& rule, int64_t row, double direction, std::vector<double>* head) {
  if (rule.cosine == nullptr) {
    return;
  }
  const int64_t position = rule.position == nullptr ? row % rule.num_positions : rule.position[row];
  const int64_t half = rule.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const bool interleaved = rule.pairs == RotaryPairs::kInterleaved;
    double& first = (*head)[static_cast<size_t>(interleaved ? 2 * i : i)];
    double& second = (*head)[static_cast<size_t>(interleaved ? 2 * i + 1 : i + half)];
    const double cosine = rule.cosine[position * half + i];
    const double sine = direction * rule.sine[position * half + i];
    const double turned = first * cosine - second * sine;
    second = first * sine + second * cosine;
    first = turned;
  }
}

/// Of a weight or bias; `otherwise` where there is none.
double value_at(const QkNormRotary& rule, const void* values, size_t d, double otherwise) {
  return values == nullptr
             ? otherwise
             : static_cast<double>(load_element(values, static_cast<int64_t>(d), rule.weight_type));
}

/// Makes x_hat of x.
/// @return  what x was multiplied by.
double normalise(const QkNormRotary& rule, std::vector<double>* head) {
  const auto dim = static_cast<double>(rule.head_dim);
  if (rule.q_bias != nullptr) {
    const double mean = std::accumulate(head->begin(), head->end(), 0.0) / dim;
    for (double& x : *head) {
      x -= mean;
    }
  }
  double squares = 0.0;
  for (const double x : *head) {
    squares += x * x;
  }
  const double rstd = 1.0 / std::sqrt(squares / dim + static_cast<double>(rule.epsilon));
  for (double& x : *head) {
    x *= rstd;
  }
  return rstd;
}

}  // namespace

void qk_norm_rotary_forward(const QkNormRotaryForward& call) {
  const QkNormRotary& rule = call.rule;
  for (int64_t row = 0; row < rule.rows; ++row) {
    const int64_t out = far_row(rule, row, call.out_stride, call.out_sample_stride);
    for (int64_t h = 0; h < heads_of_row(rule); ++h) {
      std::vector<double> head = load_head(call.in, row * call.in_stride + h * rule.head_dim, rule);
      const bool is_value = h >= 2 * rule.heads;
      if (rule.normalise && !is_value) {
        const void* weight = h < rule.heads ? rule.q_weight : rule.k_weight;
        const void* bias = h < rule.heads ? rule.q_bias : rule.k_bias;
        normalise(rule, &head);
        for (size_t d = 0; d < head.size(); ++d) {
          head[d] = head[d] * value_at(rule, weight, d, 1.0) + value_at(rule, bias, d, 0.0);
        }
      }
      if (!is_value) {
        turn(rule, row, 1.0, &head);
      }
      store_head(call.out, out + h * rule.head_dim, rule, head);
    }
  }
}

void qk_norm_rotary_backward(const QkNormRotaryBackward& call) {
  const QkNormRotary& rule = call.rule;
  const auto dim = static_cast<size_t>(rule.head_dim);
  std::vector<double> dweight[2] = {std::vector<double>(dim), std::vector<double>(dim)};
  std::vector<double> dbias[2] = {std::vector<double>(dim), std::vector<double>(dim)};
  for (int64_t row = 0; row < rule.rows; ++row) {
    const int64_t dout = far_row(rule, row, call.dout_stride, call.dout_sample_stride);
    for (int64_t h = 0; h < heads_of_row(rule); ++h) {
      const bool is_key = h >= rule.heads;
      const bool is_value = h >= 2 * rule.heads;
      std::vector<double> gradient = load_head(call.dout, dout + h * rule.head_dim, rule);
      if (!is_value) {
        turn(rule, row, -1.0, &gradient);
      }
      if (rule.normalise && !is_value) {
        const void* weight = is_key ? rule.k_weight : rule.q_weight;
        std::vector<double> xhat =
            load_head(call.in, row * call.in_stride + h * rule.head_dim, rule);
        const double rstd = normalise(rule, &xhat);
        double mean = 0.0;
        double mean_product = 0.0;
        for (size_t d = 0; d < dim; ++d) {
          dweight[is_key ? 1 : 0][d] += gradient[d] * xhat[d];
          dbias[is_key ? 1 : 0][d] += gradient[d];
          gradient[d] *= value_at(rule, weight, d, 1.0);
          mean += rule.q_bias == nullptr ? 0.0 : gradient[d] / static_cast<double>(dim);
          mean_product += gradient[d] * xhat[d] / static_cast<double>(dim);
        }
        for (size_t d = 0; d < dim; ++d) {
          gradient[d] = rstd * (gradient[d] - mean - xhat[d] * mean_product);
        }
      }
      store_head(call.din, row * call.din_stride + h * rule.head_dim, rule, gradient);
    }
  }
  for (size_t d = 0; d < dim && call.dq_weight != nullptr; ++d) {
    call.dq_weight[d] += static_cast<float>(dweight[0][d]);
    call.dk_weight[d] += static_cast<float>(dweight[1][d]);
  }
  for (size_t d = 0; d < dim && call.dq_bias != nullptr; ++d) {
    call.dq_bias[d] += static_cast<float>(dbias[0][d]);
    call.dk_bias[d] += static_cast<float>(dbias[1][d]);
  }
}

}  // namespace kinora::kernels
