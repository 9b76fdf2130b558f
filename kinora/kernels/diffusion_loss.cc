#include "kinora/kernels/diffusion_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

struct CdfValue {
  double f;
  double derivative;
};

/// (1 + tanh(scale (x + 0.044715 x^3))) / 2, and its derivative times x.
CdfValue approximate_normal_cdf(double x) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  const double f = 1.0 / (1.0 + std::exp(-2.0 * scale * (x + 0.044715 * x * x * x)));
  return {f, f * (1.0 - f) * 2.0 * scale * (1.0 + 3.0 * 0.044715 * x * x) * x};
}

/// -log p(x0) in nats and its derivative by log_variance.
CdfValue decoder_nll(double x0, double centred, double log_variance) {
  constexpr double kHalfLevel = 1.0 / 255.0;
  constexpr double kLeastProbability = 1e-12;
  const double inverse_std = std::exp(-0.5 * log_variance);
  // 1 - F(x) = F(-x): what is above the mean is mirrored, so that small probabilities keep digits.
  const double side = centred > 0.0 ? -1.0 : 1.0;
  CdfValue upper = approximate_normal_cdf(inverse_std * (side * centred + kHalfLevel));
  CdfValue lower = approximate_normal_cdf(inverse_std * (side * centred - kHalfLevel));
  const double outermost = x0 < -0.999 ? -1.0 : (x0 > 0.999 ? 1.0 : 0.0);
  if (outermost * side > 0.0) {  // reaches to plus infinity
    const CdfValue other = approximate_normal_cdf(-inverse_std * (side * centred - kHalfLevel));
    upper = other;
    lower = {};
  } else if (outermost * side < 0.0) {
    lower = {};
  }
  const double probability = upper.f - lower.f;
  if (probability < kLeastProbability) {
    return {-std::log(kLeastProbability), 0.0};
  }
  // Both arguments are proportional to exp(-log_variance / 2).
  return {-std::log(probability), 0.5 * (upper.derivative - lower.derivative) / probability};
}

/// KL(q || p) in nats and its derivative by log_ratio.
CdfValue divergence(double log_ratio, double mean_error, double log_variance) {
  const double excess = std::expm1(-log_ratio);
  const double error = mean_error * mean_error * std::exp(-log_variance);
  return {0.5 * (excess + log_ratio + error), -0.5 * (excess + error)};
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kOutside[kNumDiffusionColumns] = {kNan, kNan, kNan, kNan, kNan, kNan};
/// Without a table.
constexpr float kPlain[kNumDiffusionColumns] = {kNan, kNan, kNan, kNan, kNan, 1.0F};

/// The row of the sample's t.
const float* row_of(const DiffusionLoss& call, int64_t sample) {
  if (call.table == nullptr) {
    return kPlain;
  }
  const float t = call.t[sample];
  return t >= 0.0F && t < static_cast<float>(call.num_timesteps)
             ? call.table + static_cast<int64_t>(t) * kNumDiffusionColumns
             : kOutside;
}

/// target = noise * (its factor) + data * x0.
struct TargetOf {
  double noise;
  double data;
};

TargetOf target_of(Target target, const float* row) {
  switch (target) {
    case Target::kNoise:
      break;
    case Target::kData:
      return {0.0, 1.0};
    case Target::kV:
      return {row[kSignal], -row[kNoise]};
    case Target::kVelocity:
      return {1.0, -1.0};
  }
  return {1.0, 0.0};
}

}  // namespace

void diffusion_loss(const DiffusionLoss& call) {
  const auto n = static_cast<double>(call.sample_size);
  double mean = 0.0;
  for (int64_t b = 0; b < call.batch; ++b) {
    const double weight = call.weights == nullptr ? 1.0 : call.weights[b];
    const double scale = call.grad_factor * (call.grad_scale == nullptr ? 1.0 : *call.grad_scale) *
                         weight / static_cast<double>(call.batch);
    const int64_t out = b * call.prediction_size;
    const auto store_gradient = [&](int64_t i, double value) {
      if (call.d_prediction != nullptr) {
        store_element(call.d_prediction, out + i, call.type, static_cast<float>(value));
      }
    };
    const float* row = row_of(call, b);
    const TargetOf target = target_of(call.target, row);
    const double to_vb = call.bound_scale / (n * std::numbers::ln2);
    double mse = 0.0;
    double vb = 0.0;
    for (int64_t i = 0; i < call.sample_size; ++i) {
      const int64_t in = b * call.sample_size + i;
      const double of_data = target.data == 0.0 ? 0.0 : target.data * call.x0[in];
      const double error = target.noise * call.noise[in] + of_data -
                           load_element(call.prediction, out + i, call.type);
      mse += error * error / n;
      store_gradient(i, -2.0 * scale * row[kLossWeight] * error / n);
      if (!call.learned_variance) {
        continue;
      }
      const double variance = load_element(call.prediction, out + call.sample_size + i, call.type);
      const double log_ratio = 0.5 * (variance + 1.0) * row[kLogVarianceRange];
      const double log_variance = row[kMinLogVariance] + log_ratio;
      const double mean_error = row[kPosteriorDeviation] * error;
      CdfValue bound = call.t[b] == 0.0F ? decoder_nll(call.x0[in], -mean_error, log_variance)
                                         : divergence(log_ratio, mean_error, log_variance);
      bound.derivative *= 0.5 * row[kLogVarianceRange];
      vb += to_vb * bound.f;
      store_gradient(call.sample_size + i, scale * to_vb * bound.derivative);
    }
    for (int64_t i = call.sample_size * (call.learned_variance ? 2 : 1); i < call.prediction_size;
         ++i) {
      store_gradient(i, 0.0);
    }
    if (call.mse != nullptr) {
      call.mse[b] = static_cast<float>(mse);
    }
    if (call.vb != nullptr) {
      call.vb[b] = static_cast<float>(vb);
    }
    if (call.total != nullptr) {
      call.total[b] = static_cast<float>(row[kLossWeight] * mse + vb);
    }
    mean += weight * (row[kLossWeight] * mse + vb) /
            static_cast<double>(std::max(call.batch, int64_t{1}));
  }
  if (call.mean != nullptr) {
    *call.mean += static_cast<float>(call.mean_share * mean);
  }
}

}  // namespace kinora::kernels
