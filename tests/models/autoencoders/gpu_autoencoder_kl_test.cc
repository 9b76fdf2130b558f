#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <iostream>

#include "kinora/core/cuda.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "tests/models/autoencoders/gpu_autoencoder.h"

namespace kinora::models {
namespace gpu_autoencoder_kl_test {

using GpuAutoencoderKlTest = GpuAutoencoderTest;

TEST_F(GpuAutoencoderKlTest, BudgetsAreKeptAndChangeNothingElse) {
  AutoencoderKl model({.block_out_channels = {64, 64, 128, 128}});
  move_to_gpu(model, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor latents = at::randn({1, 4, 128, 128}, at::device(at::kCUDA));
  const auto [expected, unlimited] = with_peak([&] { return model.decode(latents); });
  for (const int64_t mib : {700, 400}) {  // in the device's memory, then spilled
    const int64_t budget = mib << 20;
    model.set_memory_budget(budget);
    const auto [decoded, peak] = with_peak([&] { return model.decode(latents); });
    EXPECT_LT(largest_relative(decoded, expected), 1e-5) << mib;
    EXPECT_LT(budget, unlimited);
    EXPECT_LE(peak, budget) << "without a budget " << unlimited;
  }
}

// Stable Diffusion's sizes, fp32. Attention to 262,144 places makes it slow.
TEST_F(GpuAutoencoderKlTest, PiecesMakeAPictureOf4096PixelsASideToo) {
  if (cuda_device(0).total_memory < (int64_t{70} << 30)) {
    GTEST_SKIP() << "the whole picture takes more memory than this GPU has";
  }
  AutoencoderKl model({});
  move_to_gpu(model, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor latents = at::randn({1, 4, 512, 512}, at::device(at::kCUDA));
  const auto [expected, unlimited] = with_peak([&] { return model.decode(latents); });
  const int64_t budget = unlimited / 3;
  model.set_memory_budget(budget);
  const auto [decoded, peak] = with_peak([&] { return model.decode(latents); });
  const double error = largest_relative(decoded, expected);
  EXPECT_LE(error, 1e-4);
  EXPECT_LE(peak, budget) << "without a budget " << unlimited;
  std::cout << "largest relative error " << error << ", peak " << peak << " of " << unlimited
            << " bytes\n";
}

TEST_F(GpuAutoencoderKlTest, HalfPrecisionIsNearFp32) {
  AutoencoderKl model({.block_out_channels = {32, 64, 64}, .layers_per_block = 1});
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = at::randn({2, 3, 64, 96}, at::device(at::kCUDA));
  move_to_gpu(model, at::kFloat);
  const LatentMoments moments = model.encode(pixels);
  const at::Tensor decoded = model.decode(moments.mean);
  move_to_gpu(model, at::kBFloat16);
  EXPECT_LT(largest_relative(model.encode(pixels).mean, moments.mean), 0.05);
  EXPECT_LT(largest_relative(model.decode(moments.mean), decoded), 0.05);
}

}  // namespace gpu_autoencoder_kl_test
}  // namespace kinora::models
