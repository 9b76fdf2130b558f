#include "kinora/diffusion/speedit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "kinora/core/error.h"

namespace kinora::diffusion {
namespace {

constexpr double kFastGrowth = 1e-4;
constexpr double kSlowGrowth = 5e-5;
// Turns the threshold on the growth into a step between 0.5 and 2.5.
constexpr double kSharpness = 1e6;
constexpr double kMiddle = 1.5;

/// Central differences, one-sided at the ends (numpy.gradient).
std::vector<double> gradient(const std::vector<double>& values) {
  const size_t count = values.size();
  std::vector<double> result(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t before = i == 0 ? 0 : i - 1;
    const size_t after = std::min(i + 1, count - 1);
    result[i] = (values[after] - values[before]) / static_cast<double>(after - before);
  }
  return result;
}

}  // namespace

std::vector<double> speedit_probabilities(std::span<const double> alphas_cumprod) {
  std::vector<double> deviations;
  for (const double alpha_bar : alphas_cumprod) {
    deviations.push_back(std::sqrt(1.0 - alpha_bar));
  }
  const std::vector<double> growth = gradient(deviations);
  const auto slow =
      std::find_if(growth.begin(), growth.end(), [](double g) { return g < kSlowGrowth; });
  KINORA_CHECK(slow != growth.end(), kConfig,
               "[objective] SpeeDiT's timesteps need a chain whose noise grows by less than ",
               kSlowGrowth, " a timestep near its end, got ", growth.back(), " at the last of ",
               growth.size(), ". Hint: objective.timesteps=1000");
  const auto count = static_cast<int64_t>(growth.size());
  const int64_t middle = (slow - growth.begin()) + 1;
  std::vector<double> drawn(growth.size());
  std::transform(growth.begin(), growth.end(), drawn.begin(),
                 [](double g) { return std::tanh(kSharpness * (g - kFastGrowth)) + kMiddle; });
  const double sum = std::accumulate(drawn.begin(), drawn.end(), 0.0);
  std::vector<double> result(growth.size(), 0.0);
  for (int64_t t = 0; t < count; ++t) {
    const double half = drawn[t] / (2.0 * sum);
    result[t] += half;
    result[std::min(std::abs(t - middle), count - 1)] += half;
  }
  return result;
}

}  // namespace kinora::diffusion
