#pragma once

namespace kinora::diffusion {

/// What a denoiser's output means, where x_t = alpha x_0 + sigma noise.
enum class Prediction {
  kEps,   ///< the noise (Ho et al. 2020)
  kData,  ///< x_0
  kV,     ///< alpha noise - sigma x_0 of a chain that preserves variance (Salimans and Ho 2022)
  kFlow,  ///< noise - x_0 of a flow, where alpha = 1 - sigma
};

/// The clean data that a prediction stands for: x0 = x * x_t + prediction * output.
struct ToClean {
  double x = 0.0;
  double prediction = 1.0;
};

/// alpha > 0 but for kData and kV. A chain that is scaled to another norm (alpha = 1) still has
/// the v of the variance-preserving one.
[[nodiscard]] ToClean to_clean(Prediction prediction, double alpha, double sigma);

}  // namespace kinora::diffusion
