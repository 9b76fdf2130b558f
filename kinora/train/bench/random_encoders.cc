#include "kinora/train/bench/random_encoders.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "kinora/core/philox.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"

namespace kinora::train {

models::T5Config t5_xxl(int64_t layers) {
  return {.d_model = 4096,
          .d_kv = 64,
          .d_ff = 10240,
          .num_layers = layers,
          .num_heads = 64,
          .activation = models::Activation::kGeluTanh,
          .is_gated = true};
}

std::unique_ptr<models::T5Encoder> random_t5(const models::T5Config& config, at::Device device,
                                             at::ScalarType type) {
  auto encoder = std::make_unique<models::T5Encoder>(config);
  std::vector<nn::NamedParameter> parameters = encoder->named_parameters();
  std::ranges::sort(parameters, {}, &nn::NamedParameter::path);
  uint64_t seed = kBenchmarkSeed;
  for (const auto& [path, parameter] : parameters) {
    at::manual_seed(seed++);
    const at::Tensor drawn =
        at::randn(parameter->shape, at::TensorOptions(at::kFloat).device(device));
    const bool is_norm = parameter->init.kind == nn::Init::Kind::kOne;
    parameter->value = (is_norm ? drawn * 0.1 + 1.0 : drawn * parameter->init.scale).to(type);
    parameter->frozen = true;
  }
  return encoder;
}

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

at::Tensor random_values(std::vector<int64_t> shape, int64_t number) {
  shape.insert(shape.begin(), 1);
  return ops::random_normal(shape, at::arange(number, number + 1, at::kLong), kBenchmarkSeed, 0,
                            RandomPurpose::kTest, at::kCPU)
      .squeeze(0);
}

}  // namespace kinora::train
