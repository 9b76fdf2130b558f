#pragma once

#include <span>
#include <vector>

#include "kinora/diffusion/prediction.h"

/// Weights of the squared error by timestep of a discrete chain. SNR = alpha-bar / (1 - alpha-bar).
/// The variational bound of a learned variance is not weighted, as in the official programs.
namespace kinora::diffusion {

struct LossWeights {
  enum class Kind {
    kNone,
    /// Hang et al. 2023, section 3.4: that of the error of x_0 is min(SNR, gamma), so that of eps
    /// min(SNR, gamma) / SNR and of v min(SNR, gamma) / (SNR + 1). Where the SNR is 0 it is 1, as
    /// in their program: else nothing would be learned of a chain's purely noisy end.
    kMinSnr,
    /// Choi et al. 2022, eq. 8: 1 / (k + SNR)^gamma on the error of whatever is predicted.
    kP2,
  };
  Kind kind = Kind::kNone;
  double min_snr_gamma = 5.0;
  double p2_k = 1.0;
  double p2_gamma = 1.0;
};

/// One weight a timestep. Error kConfig unless min_snr_gamma > 0, p2_k > 0 and p2_gamma >= 0.
[[nodiscard]] std::vector<double> loss_weights(const LossWeights& weights, Prediction prediction,
                                               std::span<const double> alphas_cumprod);

}  // namespace kinora::diffusion
