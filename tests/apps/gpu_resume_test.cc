// On one GPU with train.deterministic, too, stopping and resuming changes not a bit.

#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace {

struct Case {
  std::string name;
  Arguments overrides;
};

std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

class GpuResumeTest : public RunTest, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "there is no GPU: " << cuda_unavailable_reason();
    }
  }

  void train_on_gpu(const std::string& run, const Arguments& more) const {
    Arguments arguments = {"train.device=cuda", "train.deterministic=true"};
    arguments.insert(arguments.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    train_well(run_dir(run), arguments);
  }
};

TEST_P(GpuResumeTest, TwentyStepsEqualTenAndTen) {
  train_on_gpu("whole", {"train.steps=20"});
  train_on_gpu("parts", {"train.steps=10"});
  train_on_gpu("parts", {"train.steps=20", "--resume", "auto"});
  expect_same_state(run_dir("whole") / "checkpoints/step-20",
                    run_dir("parts") / "checkpoints/step-20");
  expect_same_log(run_dir("whole"), run_dir("parts"), 20);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, GpuResumeTest,
    testing::Values(Case{"iddpm_fp32", {}}, Case{"iddpm_bf16", {"train.precision=bf16"}},
                    Case{"iddpm_fp16", {"train.precision=fp16"}},
                    Case{"flow_bf16",
                         {"objective.kind=flow", "model.learn_sigma=false", "train.precision=bf16",
                          "train.micro_batch=4", "optim.max_grad_norm=1",
                          "ema.decays=[0.9, 0.999]"}},
                    Case{"importance_recomputed",
                         {"objective.timestep_sampling=importance", "objective.timesteps=21",
                          "train.global_batch=96", "train.recompute=block"}},
                    Case{"validated_and_sampled",
                         {"train.precision=bf16", "data.validation=8", "validation.every=4",
                          "sample.every=3", "sample.count=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kinora::apps
