#include "kinora/models/autoencoders/wan_vae.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/error_of.h"
#include "tests/models/autoencoders/gpu_autoencoder.h"

namespace kinora::models {
namespace gpu_wan_vae_test {

using GpuWanVaeTest = GpuAutoencoderTest;

// Its norms are kernels of ours there, and pieces of frames and bands of rows begin with what they
// remember.
TEST_F(GpuWanVaeTest, DecodesAsTheCpuDoesInPiecesToo) {
  const at::NoGradGuard no_grad;
  WanVae model({.base_dim = 16,
                .z_dim = 4,
                .num_res_blocks = 1,
                .latents_mean = {0.0, 0.5, -0.5, 0.25},
                .latents_std = {1.0, 2.0, 0.5, 1.0}});
  const at::Tensor latents = at::randn({1, 4, 5, 6, 4});
  place_weights(model, at::kCPU, at::kFloat);
  const at::Tensor expected = model.decode(latents);
  const at::Tensor given = latents.to(at::kCUDA);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    move_to_gpu(model, type);
    const double tolerance = type == at::kFloat ? 1e-4 : 0.05;
    model.set_memory_budget(1);
    const std::string error = error_of(ErrorKind::kConfig, [&] { (void)model.decode(given); });
    const std::string hint = "must be ";
    ASSERT_NE(error.find(hint), std::string::npos) << error;
    const int64_t least = std::stoll(error.substr(error.find(hint) + hint.size()));
    for (const int64_t budget : {int64_t{0}, 16 * least, 4 * least, least}) {
      model.set_memory_budget(budget);
      EXPECT_LT(largest_relative(model.decode(given).cpu(), expected), tolerance) << budget;
    }
  }
}

}  // namespace gpu_wan_vae_test
}  // namespace kinora::models
