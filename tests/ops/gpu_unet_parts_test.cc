// The kernels behind ops/unet_parts.h against ATen's calls.

#include "kinora/ops/unet_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
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

}  // namespace gpu_unet_parts_test
}  // namespace kinora::ops
