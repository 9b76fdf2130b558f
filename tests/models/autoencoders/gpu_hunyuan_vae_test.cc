#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <utility>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/models/autoencoders/hunyuan_vae.h"
#include "tests/models/formula_values.h"

namespace kinora::models {
namespace gpu_hunyuan_vae_test {

class GpuHunyuanVaeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
    at::globalContext().setAllowTF32CuDNN(false);
  }
  void TearDown() override { at::globalContext().setAllowTF32CuDNN(true); }
};

void move_to_gpu(HunyuanVae& model, at::ScalarType type) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    const at::Tensor value = formula_weight(path, parameter->shape).to(at::kCUDA, type);
    parameter->value =  // as open_autoencoder() lays them out
        value.dim() == 5 ? value.contiguous(at::MemoryFormat::ChannelsLast3d) : value;
  }
}

// Within a budget below the largest activation the last levels pass window by window.
TEST_F(GpuHunyuanVaeTest, WindowsAreTheWholeInLessMemory) {
  const at::NoGradGuard no_grad;
  const at::Device device(at::kCUDA, 0);
  HunyuanVae model({.latent_channels = 4,
                    .block_out_channels = {32, 32, 64, 64},
                    .layers_per_block = 1,
                    .norm_num_groups = 8,
                    .scaling_factor = 0.5});
  const at::Tensor latents = at::randn({1, 4, 9, 32, 32}, at::device(at::kCUDA));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    move_to_gpu(model, type);
    const auto with_peak = [&] {
      device::synchronize(device);
      at::accelerator::emptyCache();
      at::accelerator::resetPeakStats(0);
      const int64_t before = device::peak_memory(device);
      const at::Tensor decoded = model.decode(latents);
      device::synchronize(device);
      return std::pair(decoded, device::peak_memory(device) - before);
    };
    model.set_memory_budget(0);
    const auto [expected, unlimited] = with_peak();
    const auto bytes = static_cast<int64_t>(c10::elementSize(type));
    const int64_t largest = int64_t{33} * 256 * 256 * 32 * bytes;
    model.set_memory_budget(largest * 9 / 10);
    EXPECT_FALSE(model
                     .decode_plan({.channels = 4,
                                   .frames = 9,
                                   .rows = 32,
                                   .columns = 32,
                                   .element_bytes = bytes,
                                   .one_pass_norms = true},
                                  false)
                     .on_host);
    const auto [decoded, peak] = with_peak();
    EXPECT_LT(peak, unlimited / 2);  // cuDNN's workspaces are in it
    const double error = ((decoded - expected).abs().max() / expected.abs().max()).item<double>();
    EXPECT_LT(error, type == at::kFloat ? 1e-5 : 0.03);
  }
}

}  // namespace gpu_hunyuan_vae_test
}  // namespace kinora::models
