#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/text_encoders/t5_encoder.h"

/// Frozen encoders in published sizes with random weights, for benchmarks.
namespace kinora::train {

/// T5-XXL's encoder (T5 1.1); 24 layers are all of it.
[[nodiscard]] models::T5Config t5_xxl(int64_t layers);

/// Its weights are made on `device` by libtorch's generator, seeded by a weight's place in
/// alphabetical order: bench/peers/t5_encoder.py makes the same ones.
[[nodiscard]] std::unique_ptr<models::T5Encoder> random_t5(const models::T5Config& config,
                                                           at::Device device, at::ScalarType type);

/// Stable Diffusion's autoencoder. Weights are as they start: numbers matter for power, not their
/// meaning.
[[nodiscard]] std::unique_ptr<models::Autoencoder> random_autoencoder(at::Device device,
                                                                      at::ScalarType type);

/// Normal numbers fp32 of that shape on the CPU; other numbers for each `number`.
[[nodiscard]] at::Tensor random_values(std::vector<int64_t> shape, int64_t number);

}  // namespace kinora::train
