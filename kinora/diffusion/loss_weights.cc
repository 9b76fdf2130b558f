#include "kinora/diffusion/loss_weights.h"

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"

namespace kinora::diffusion {
namespace {

double min_snr(double snr, double gamma, Prediction prediction) {
  if (snr == 0.0) {
    return 1.0;
  }
  switch (prediction) {
    case Prediction::kEps:
      return std::min(snr, gamma) / snr;
    case Prediction::kData:
      return std::min(snr, gamma);
    case Prediction::kV:
      return std::min(snr, gamma) / (snr + 1.0);
    case Prediction::kFlow:
      break;
  }
  KINORA_UNREACHABLE("[objective] a chain has no predictions of flows");
}

}  // namespace

std::vector<double> loss_weights(const LossWeights& weights, Prediction prediction,
                                 std::span<const double> alphas_cumprod) {
  KINORA_CHECK(weights.min_snr_gamma > 0.0 && weights.p2_k > 0.0 && weights.p2_gamma >= 0.0,
               kConfig,
               "[objective] min-SNR's gamma and P2's k must be above 0 and P2's gamma at "
               "least 0, got ",
               weights.min_snr_gamma, ", ", weights.p2_k, " and ", weights.p2_gamma, ".");
  std::vector<double> result;
  for (const double alpha_bar : alphas_cumprod) {
    const double snr = alpha_bar / (1.0 - alpha_bar);
    switch (weights.kind) {
      case LossWeights::Kind::kNone:
        result.push_back(1.0);
        break;
      case LossWeights::Kind::kMinSnr:
        result.push_back(min_snr(snr, weights.min_snr_gamma, prediction));
        break;
      case LossWeights::Kind::kP2:
        result.push_back(std::pow(weights.p2_k + snr, -weights.p2_gamma));
        break;
    }
  }
  return result;
}

}  // namespace kinora::diffusion
