#pragma once

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "tests/models/formula_values.h"

namespace kinora::models {

/// Skips without a GPU. Products are exact: errors of pieces alone are looked for.
class GpuAutoencoderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
    at::globalContext().setAllowTF32CuDNN(false);
  }
  void TearDown() override { at::globalContext().setAllowTF32CuDNN(true); }
};

/// Gives the model formula weights there, as open_autoencoder() lays them out.
inline void place_weights(Autoencoder& model, at::Device device, at::ScalarType type) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    const at::Tensor value = formula_weight(path, parameter->shape).to(device, type);
    parameter->value = value.dim() == 4   ? value.contiguous(at::MemoryFormat::ChannelsLast)
                       : value.dim() == 5 ? value.contiguous(at::MemoryFormat::ChannelsLast3d)
                                          : value;
  }
}

inline void move_to_gpu(Autoencoder& model, at::ScalarType type) {
  place_weights(model, at::Device(at::kCUDA, 0), type);
}

/// Of two on one device.
inline double largest_relative(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

/// What `decode` gives, and the bytes that it takes at most besides what is there.
template <typename Decode>
std::pair<at::Tensor, int64_t> with_peak(const Decode& decode) {
  const at::Device device(at::kCUDA, 0);
  device::synchronize(device);
  at::accelerator::emptyCache();
  at::accelerator::resetPeakStats(0);
  const int64_t before = device::peak_memory(device);
  const at::Tensor result = decode();
  device::synchronize(device);
  return {result, device::peak_memory(device) - before};
}

}  // namespace kinora::models
