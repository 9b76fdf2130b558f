#include "kinora/diffusion/betas.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kinora/core/error.h"

namespace kinora::diffusion {
namespace {

constexpr double kMaxCosineBeta = 0.999;
constexpr double kCosineOffset = 0.008;

double cosine_alpha_bar(double fraction) {
  const double cosine =
      std::cos((fraction + kCosineOffset) / (1.0 + kCosineOffset) * std::numbers::pi / 2.0);
  return cosine * cosine;
}

/// Operations and their order as in numpy.linspace, so that tables agree to the last bit.
std::vector<double> numpy_linspace(double start, double end, int64_t count) {
  const double stride = count == 1 ? 0.0 : (end - start) / static_cast<double>(count - 1);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<double>(i) * stride + start);
  }
  if (count > 1) {
    values.back() = end;
  }
  return values;
}

/// The inverse of alphas_cumprod().
std::vector<double> betas_of(std::span<const double> alphas) {
  std::vector<double> betas;
  double previous = 1.0;
  for (const double alpha_bar : alphas) {
    betas.push_back(1.0 - alpha_bar / previous);
    previous = alpha_bar;
  }
  return betas;
}

}  // namespace

std::vector<double> make_betas(BetaCurve curve, int64_t num_timesteps, double start, double end) {
  KINORA_CHECK(num_timesteps >= 1, kConfig, "[schedule] a chain needs at least 1 timestep, got ",
               num_timesteps, ".");
  KINORA_CHECK(curve == BetaCurve::kSquaredCosine || (start > 0.0 && start <= end && end < 1.0),
               kConfig, "[schedule] betas must hold 0 < start <= end < 1, got ", start, " and ",
               end, ".");
  std::vector<double> betas;
  switch (curve) {
    case BetaCurve::kLinear:
      return numpy_linspace(start, end, num_timesteps);
    case BetaCurve::kScaledLinear:
      betas = numpy_linspace(std::sqrt(start), std::sqrt(end), num_timesteps);
      for (double& beta : betas) {
        beta *= beta;
      }
      return betas;
    case BetaCurve::kSquaredCosine: {
      const double total = static_cast<double>(num_timesteps);
      for (int64_t i = 0; i < num_timesteps; ++i) {
        const double from = cosine_alpha_bar(static_cast<double>(i) / total);
        const double to = cosine_alpha_bar(static_cast<double>(i + 1) / total);
        betas.push_back(std::min(1.0 - to / from, kMaxCosineBeta));
      }
      return betas;
    }
  }
  KINORA_UNREACHABLE("[schedule] unknown curve of betas");
}

std::vector<double> zero_terminal_snr(std::span<const double> betas) {
  KINORA_CHECK(betas.size() >= 2, kConfig,
               "[schedule] zero terminal SNR needs at least 2 timesteps, got ", betas.size(), ".");
  std::vector<double> roots = alphas_cumprod(betas);
  for (double& value : roots) {
    value = std::sqrt(value);
  }
  const double first = roots.front();
  const double last = roots.back();
  for (double& root : roots) {
    root = (root - last) * (first / (first - last));
    root *= root;
  }
  return betas_of(roots);
}

std::vector<double> shifted_snr(std::span<const double> betas, double shift) {
  KINORA_CHECK(shift > 0.0, kConfig, "[schedule] the SNR must be shifted by more than 0, got ",
               shift, ".");
  std::vector<double> alphas = alphas_cumprod(betas);
  for (double& alpha_bar : alphas) {
    alpha_bar /= shift + (1.0 - shift) * alpha_bar;
  }
  return betas_of(alphas);
}

std::vector<double> alphas_cumprod(std::span<const double> betas) {
  std::vector<double> products;
  double product = 1.0;
  for (const double beta : betas) {
    product *= 1.0 - beta;
    products.push_back(product);
  }
  return products;
}

}  // namespace kinora::diffusion
