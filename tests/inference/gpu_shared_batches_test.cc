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

// The second batch records what the first decided, and so does the third, which replays it.
TEST_P(GpuSharedBatchesTest, GraphsLeaveOutWhatTheFirstBatchDid) {
  TrainedModel trained = tiny_model(family(), choose_device(DeviceChoice::kCuda), Precision::kBf16);
  if (!trained.graphs || !trained.model->can_sample_in_fp8()) {
    GTEST_SKIP() << "step caches are for transformers on the fast path";
  }
  using Kind = diffusion::StepCacheConfig::Kind;
  for (const Kind kind : {Kind::kFirstBlock, Kind::kTea}) {
    const auto draw = [&](bool graphs) {
      trained.graphs = graphs;
      trained.model->use_step_cache({.kind = kind, .threshold = 1e3});
      Request request = requests_of_users(family()).front();
      request.count = 3;
      return Drawing(trained, {request}, {.batch = 1, .steps = 4}).draw();
    };
    const at::Tensor each = draw(false);
    const at::Tensor recorded = draw(true);
    EXPECT_GT(trained.model->step_cache_use().blocks.left_out, 0);
    EXPECT_TRUE(at::equal(recorded, each));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuSharedBatchesTest, testing::ValuesIn(family_keys()),
                         [](const auto& of) { return of.param; });

}  // namespace gpu_shared_batches_test
}  // namespace kinora::inference
