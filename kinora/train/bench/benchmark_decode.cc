#include "kinora/train/bench/benchmark_decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <memory>

#include "kinora/core/philox.h"
#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/ops/random.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/train/bench/benchmark.h"

namespace kinora::train {
namespace {

at::Tensor random_values(std::vector<int64_t> shape, int64_t number) {
  shape.insert(shape.begin(), 1);
  return ops::random_normal(shape, at::arange(number, number + 1, at::kLong), kBenchmarkSeed, 0,
                            RandomPurpose::kTest, at::kCPU)
      .squeeze(0);
}

/// Stable Diffusion's, with weights as they start: numbers matter for power, not their meaning.
std::unique_ptr<models::Autoencoder> random_autoencoder(at::Device device, at::ScalarType type) {
  auto model = std::make_unique<models::AutoencoderKl>(models::AutoencoderKlConfig{});
  int64_t number = 0;
  for (const auto& [path, parameter] : model->named_parameters()) {
    const bool is_norm = parameter->init.kind == nn::Init::Kind::kOne;
    at::Tensor value =
        random_values(parameter->shape, ++number) * (is_norm ? 0.1 : parameter->init.scale) +
        (is_norm ? 1.0 : 0.0);
    value = value.to(device, type);
    parameter->value = value.dim() == 4 ? value.contiguous(at::MemoryFormat::ChannelsLast) : value;
  }
  return model;
}

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

DecodeBenchmark benchmark_decode(const DecodeBenchmarkOptions& options) {
  device::configure_computation(0, false);
  const at::Device device = inference::choose_device(options.device);
  const at::ScalarType type = inference::compute_type(options.precision);
  start_memory_anew(device);
  const at::NoGradGuard no_grad;
  const std::unique_ptr<models::Autoencoder> model =
      options.autoencoder.empty() ? random_autoencoder(device, type)
                                  : pipelines::open_autoencoder(options.autoencoder, device, type);
  model->set_memory_budget(options.memory_budget);
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
  return result;
}

}  // namespace kinora::train
