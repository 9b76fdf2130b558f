#include "kinora/pipelines/cache_price.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/mean.h>

#include <cmath>
#include <iomanip>
#include <sstream>

namespace kinora::pipelines {

std::string CachePrice::describe() const {
  std::ostringstream text;
  text << std::setprecision(3) << seconds_without / seconds << " times as fast as without ("
       << seconds << " s against " << seconds_without << " s for " << samples
       << (samples == 1 ? " sample" : " samples") << "), relative error " << relative_error;
  if (psnr) {
    text << ", PSNR " << *psnr << " dB";
  }
  return text.str();
}

double relative_error(const at::Tensor& with, const at::Tensor& without) {
  return ((with - without).norm() / without.norm()).item<double>();
}

double psnr(const at::Tensor& with, const at::Tensor& without) {
  constexpr double kPeak = 2.0;  // from -1 to 1
  const auto shown = [](const at::Tensor& pictures) {
    return at::clamp(pictures.to(at::kDouble), -1.0, 1.0);
  };
  const double error = (shown(with) - shown(without)).square().mean().item<double>();
  return 10.0 * std::log10(kPeak * kPeak / error);
}

}  // namespace kinora::pipelines
