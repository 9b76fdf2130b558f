// Patches on a GPU, by our kernel, against those on the CPU: the same values exactly.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "kinora/device/device.h"
#include "kinora/ops/patches.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_patches_test {

using Function = std::function<at::Tensor(const at::Tensor&)>;

void expect_same(const Function& function, const at::Tensor& input) {
  const at::Tensor host = input.detach().clone().set_requires_grad(true);
  const at::Tensor device = input.to(at::kCUDA).detach().set_requires_grad(true);
  const at::Tensor want = function(host);
  const at::Tensor got = function(device);
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  EXPECT_TRUE(at::equal(got.to(at::kCPU), want));
  // A gradient whose layout is not the result's.
  const at::Tensor incoming =
      normal({want.size(1), want.size(0)}, 7, want.scalar_type()).t().reshape({want.size(0), -1});
  std::vector<int64_t> shape(static_cast<size_t>(want.dim()), 1);
  shape[0] = want.size(0);
  shape[1] = want.size(1);
  const at::Tensor grad = incoming.reshape(shape).expand(want.sizes());
  torch::autograd::backward({want}, {grad});
  torch::autograd::backward({got}, {grad.to(at::kCUDA)});
  EXPECT_TRUE(at::equal(device.grad().to(at::kCPU), host.grad()));
}

TEST(GpuPatchesTest, EqualTheCpus) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  const at::Tensor image = normal({3, 4, 6, 10}, 1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_same([&](const at::Tensor& x) { return patchify(x, 2, type); }, image);
    expect_same([&](const at::Tensor& x) { return patchify(x.transpose(2, 3), 2, type); }, image);
    expect_same([&](const at::Tensor& x) { return unpatchify(x, 6, 10, 2); },
                normal({3, 15, 24}, 2, type));
  }
}

}  // namespace gpu_patches_test
}  // namespace kinora::ops
