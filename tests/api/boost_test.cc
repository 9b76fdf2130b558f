#include "kinora/boost.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

namespace kinora {
namespace boost_test {

TEST(BoostTest, ModuleOfLibtorchLearns) {
  at::manual_seed(1);
  torch::nn::Linear model(2, 1);
  auto boosted = boost(*model, {}, {.value = 5e-2},
                       {.precision = Precision::kFp32, .device = DeviceChoice::kCpu});
  float first = 0.0F;
  float last = 0.0F;
  for (int step = 0; step < 50; ++step) {
    const at::Tensor x = at::rand({64, 2});
    boosted.backward(at::mse_loss(model->forward(x).squeeze(1), x.select(1, 0)));
    last = boosted.step().loss;
    first = step == 0 ? last : first;
  }
  EXPECT_LT(last, 0.2F * first);
}

}  // namespace boost_test
}  // namespace kinora
