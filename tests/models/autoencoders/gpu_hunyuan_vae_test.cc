#include "kinora/models/autoencoders/hunyuan_vae.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/models/autoencoders/gpu_autoencoder.h"

namespace kinora::models {
namespace gpu_hunyuan_vae_test {

using GpuHunyuanVaeTest = GpuAutoencoderTest;

// Within a budget below the largest activation the last levels pass window by window.
TEST_F(GpuHunyuanVaeTest, WindowsAreTheWholeInLessMemory) {
  const at::NoGradGuard no_grad;
  HunyuanVae model({.latent_channels = 4,
                    .block_out_channels = {32, 32, 64, 64},
                    .layers_per_block = 1,
                    .norm_num_groups = 8,
                    .scaling_factor = 0.5});
  const at::Tensor latents = at::randn({1, 4, 9, 32, 32}, at::device(at::kCUDA));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    move_to_gpu(model, type);
    const auto decode = [&] { return model.decode(latents); };
    model.set_memory_budget(0);
    const auto [expected, unlimited] = with_peak(decode);
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
    const auto [decoded, peak] = with_peak(decode);
    EXPECT_LT(peak, unlimited / 2);  // cuDNN's workspaces are in it
    EXPECT_LT(largest_relative(decoded, expected), type == at::kFloat ? 1e-5 : 0.03);
  }
}

}  // namespace gpu_hunyuan_vae_test
}  // namespace kinora::models
