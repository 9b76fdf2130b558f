// Requests of several users in one batch on a GPU, each against the same drawn alone.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "tests/inference/family_models.h"

namespace kinora::inference {
namespace gpu_shared_batches_test {

class GpuSharedBatchesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
  }

  [[nodiscard]] static const models::Family& family() { return family_named(GetParam()); }

  /// batch_invariant, in this type, with CUDA graphs where the path records them.
  void expect_as_alone(Precision precision) {
    TrainedModel trained =
        tiny_model(family_named(GetParam()), choose_device(DeviceChoice::kCuda), precision);
    trained.recipe.sample.sampling.batch_invariant = true;
    const std::vector<Request> requests = requests_of_users(family());
    const std::vector<at::Tensor> together = Drawing(trained, requests, {.batch = 4}).draw_each();
    const bool graphs = trained.graphs;
    for (size_t i = 0; i < requests.size(); ++i) {
      trained.graphs = graphs;
      EXPECT_TRUE(at::equal(together[i], Drawing(trained, {requests[i]}, {}).draw())) << i;
      trained.graphs = false;
      EXPECT_TRUE(at::equal(together[i], Drawing(trained, {requests[i]}, {}).draw()))
          << i << " without a graph";
    }
  }
};

TEST_P(GpuSharedBatchesTest, EachIsAsAloneInEveryBitInFp32) {
  expect_as_alone(Precision::kFp32);
}

TEST_P(GpuSharedBatchesTest, EachIsAsAloneInEveryBitInBf16) {
  expect_as_alone(Precision::kBf16);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuSharedBatchesTest, testing::ValuesIn(family_keys()),
                         [](const auto& of) { return of.param; });

}  // namespace gpu_shared_batches_test
}  // namespace kinora::inference
