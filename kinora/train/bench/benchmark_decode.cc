#include "kinora/train/bench/benchmark_decode.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/random_encoders.h"

namespace kinora::train {
namespace {

std::vector<int64_t> shape_of(const DecodeBenchmarkOptions& options,
                              const models::LatentSpace& space) {
  const int64_t shrunk = options.encode ? 1 : space.compression;
  std::vector<int64_t> shape = {options.batch, options.encode ? 3 : space.channels,
                                options.height / shrunk, options.width / shrunk};
  if (options.frames > 1) {
    shape.insert(shape.begin() + 2, options.frames);
  }
  return shape;
}

}  // namespace

DecodeBenchmark benchmark_decode(const DecodeBenchmarkOptions& options, const comm::Group& ranks) {
  device::configure_computation(0, false);
  const at::Device device = inference::choose_device(options.device);
  const at::ScalarType type = inference::compute_type(options.precision);
  start_memory_anew(device);
  const at::NoGradGuard no_grad;
  const std::unique_ptr<models::Autoencoder> model =
      options.autoencoder.empty() ? random_autoencoder(device, type)
                                  : pipelines::open_autoencoder(options.autoencoder, device, type);
  model->set_memory_budget(options.memory_budget);
  model->use_ranks(ranks);
  const at::Tensor input = random_values(shape_of(options, model->space()), 0).to(device);
  const auto run = [&](int64_t /*call*/) {
    if (options.encode) {
      (void)model->encode(input);
    } else {
      (void)model->decode(input);
    }
  };
  for (int64_t i = 0; i < options.warmup; ++i) {
    run(i);
  }
  DecodeBenchmark result;
  result.device = device::describe(device);
  result.seconds = median_call_seconds(device, options.repeats, run);
  result.images_per_s = static_cast<double>(options.batch) / result.seconds;
  result.peak_memory = device::peak_memory(device);
  if (options.profile) {
    result.trace = trace_calls(device, 1, run);
  }
  return result;
}

}  // namespace kinora::train
