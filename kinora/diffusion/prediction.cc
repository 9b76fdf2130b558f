#include "kinora/diffusion/prediction.h"

#include <cmath>

#include "kinora/core/error.h"

namespace kinora::diffusion {

ToClean to_clean(Prediction prediction, double alpha, double sigma) {
  switch (prediction) {
    case Prediction::kEps:
      KINORA_CHECK(alpha > 0.0, kConfig,
                   "[sampler] predicted noise says nothing of the data where the signal is 0. "
                   "Hint: chains of zero terminal SNR need a model that predicts v or the data.");
      return {.x = 1.0 / alpha, .prediction = -sigma / alpha};
    case Prediction::kData:
      return {.x = 0.0, .prediction = 1.0};
    case Prediction::kV: {
      const double square = alpha * alpha + sigma * sigma;
      return {.x = alpha / square, .prediction = -sigma / std::sqrt(square)};
    }
    case Prediction::kFlow:
      return {.x = 1.0, .prediction = -sigma};
  }
  KINORA_UNREACHABLE("[sampler] unknown prediction");
}

}  // namespace kinora::diffusion
