// The kernels behind ops/unet_parts.h against ATen's calls.

#include "kinora/ops/unet_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
#include "kinora/ops/convolution.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_unet_parts_test {

TEST(GpuAddBiasTest, AddsToEveryPlaceOfImagesAndClips) {
  if (!cuda_available()) {
    GTEST_SKIP() << "there is no GPU";
  }
  const at::NoGradGuard no_grad;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 40, 9, 7}, {2, 40, 3, 9, 7}}) {
    const bool is_clip = sizes.size() == 5;
    const at::Tensor bias = normal({40}, 1, at::kBFloat16).to(at::kCUDA);
    const at::Tensor x = normal(sizes, 2, at::kBFloat16)
                             .to(at::kCUDA)
                             .contiguous(is_clip ? at::MemoryFormat::ChannelsLast3d
                                                 : at::MemoryFormat::ChannelsLast);
    std::vector<int64_t> by_channel(sizes.size(), 1);
    by_channel[1] = 40;
    const at::Tensor want = x + bias.view(by_channel);
    EXPECT_TRUE(at::equal(add_bias(x, bias), want));
  }
}

// Without gradients pieces of a convolution go to their place in the result with bias and sum.
TEST(GpuAddBiasTest, PiecesOfAConvolutionAreTheWhole) {
  if (!cuda_available()) {
    GTEST_SKIP() << "there is no GPU";
  }
  const at::NoGradGuard no_grad;
  const auto on_gpu = [](const std::vector<int64_t>& sizes, uint64_t seed) {
    return normal(sizes, seed, at::kBFloat16)
        .to(at::kCUDA)
        .contiguous(at::MemoryFormat::ChannelsLast3d);
  };
  for (const int64_t batch : {1, 2}) {
    const at::Tensor x = on_gpu({batch, 16, 7, 9, 8}, 1);
    const at::Tensor weight = on_gpu({40, 16, 3, 3, 3}, 2);
    const at::Tensor bias = normal({40}, 3, at::kBFloat16).to(at::kCUDA);
    const at::Tensor plus = on_gpu({batch, 40, 7, 9, 8}, 4);
    for (const at::Tensor& added : {plus, at::Tensor()}) {
      const ConvolutionOptions options = {
          .stride = {1, 1, 1}, .padding = {{{2, 0}, {1, 1}, {1, 1}}}, .plus = added};
      const at::Tensor want =
          convolve(x.to(at::kFloat), weight.to(at::kFloat), bias.to(at::kFloat),
                   {.stride = options.stride, .padding = options.padding}) +
          (added.defined() ? added.to(at::kFloat) : at::zeros_like(plus, at::kFloat));
      for (const int64_t limit : {kMaxElements, int64_t{12000}}) {
        const at::Tensor got = convolve(x, weight, bias, options, limit);
        EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast3d));
        EXPECT_LT((got.to(at::kFloat) - want).abs().max().item<double>(),
                  0.02 * want.abs().max().item<double>());
      }
    }
  }
}

}  // namespace gpu_unet_parts_test
}  // namespace kinora::ops
