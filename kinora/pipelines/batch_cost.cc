#include "kinora/pipelines/batch_cost.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>
#include <vector>

#include "kinora/core/seconds.h"
#include "kinora/ops/random.h"

namespace kinora::pipelines {
namespace {

/// Of one call that has warmed up.
double quickest(at::Device device, const std::function<void()>& call) {
  // A GPU's first calls choose algorithms and allocate; a CPU's cost as much as the others or more.
  const int warmup = device.is_cuda() ? 2 : 1;
  const int timed = device.is_cuda() ? 5 : 2;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < warmup + timed; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    if (device.is_cuda()) {
      at::accelerator::synchronizeDevice(device.index());
    }
    least = i < warmup ? least : std::min(least, seconds_since(begin));
  }
  return least;
}

}  // namespace

std::string BatchCost::describe() const {
  std::ostringstream text;
  text << std::setprecision(3) << one_by_one / together
       << " times the time of batches: " << 1e3 * one_by_one << " ms an evaluation of " << size
       << " samples one by one, " << 1e3 * together << " ms together";
  return text.str();
}

BatchCost measure_batch_cost(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                             const diffusion::Guidance& guidance, at::IntArrayRef sample_shape,
                             const DrawConditions& conditions, int64_t size, at::Device device) {
  const c10::NoGradGuard no_grad;
  const double t = diffusion::sampling_times(sampler, at::kCPU)[0].item<double>();
  const auto seconds_of = [&](int64_t rows, const DrawConditions& given) {
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), sample_shape.begin(), sample_shape.end());
    const at::Tensor x = ops::random_normal(shape, at::arange(rows, at::kLong), /*seed=*/0, 0,
                                            RandomPurpose::kInitialNoise, device);
    diffusion::Guidance own = guidance;
    own.null = given.null;
    diffusion::GuidedDenoiser guided(denoiser, given.conditions, own);
    // At a noise level that is guided, if any is.
    return quickest(device, [&] { (void)guided.predict(x, t, guidance.high); });
  };
  return {.size = size,
          .together = seconds_of(size, conditions),
          .one_by_one = static_cast<double>(size) * seconds_of(1, conditions.of_row(0))};
}

}  // namespace kinora::pipelines
