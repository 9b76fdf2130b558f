// Several GPUs, through NCCL: every stage, and every way to divide sequences, trains as one GPU
// does with the same global batch.

#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/cuda.h"
#include "tests/apps/run_folder.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::apps {
namespace multi_gpu_ranks_test {

struct Case {
  std::string name;
  Arguments overrides;
  double tolerance;  ///< relative, of the losses of all steps
};

std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

class MultiGpuTest : public RunTest, public testing::WithParamInterface<Case> {
 protected:
  [[nodiscard]] std::vector<double> losses(const std::string& run, Arguments more) const {
    const Arguments all = {"train.device=cuda", "train.steps=12", "train.global_batch=32",
                           "optim.eps=1e-3", "train.self_test=false"};
    more.insert(more.end(), all.begin(), all.end());
    more.insert(more.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    train_well(run_dir(run), more);
    std::vector<double> result;
    for (const LogLine& line : read_log(run_dir(run))) {
      result.push_back(line.at("loss"));
    }
    return result;
  }
};

TEST_P(MultiGpuTest, EqualsOneGpu) {
  const int64_t gpus = cuda_available() ? cuda_device_count() : 0;
  if (gpus < 2) {
    GTEST_SKIP() << "there are " << gpus << " GPUs, and it needs two";
  }
  const std::vector<double> want = losses("one", {});
  ASSERT_EQ(want.size(), 12U);
  for (const char* stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(std::string("zero_stage ") + stage);
    const std::vector<double> got = losses(std::string("stage") + stage,
                                           {std::string("parallel.zero_stage=") + stage, "--ranks",
                                            std::to_string(std::min<int64_t>(gpus, 4))});
    ASSERT_EQ(got.size(), want.size());
    for (const LogLine& line : read_log(run_dir(std::string("stage") + stage))) {
      EXPECT_GT(line.at("communication_s").get<double>(), 0.0) << line;
    }
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(std::abs(got[i] - want[i]), GetParam().tolerance * std::abs(want[i]))
          << "step " << i << ": " << got[i] << " and " << want[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, MultiGpuTest,
    testing::Values(
        Case{"fp32", {}, 1e-4}, Case{"fp32_accumulated", {"train.micro_batch=4"}, 1e-4},
        Case{"bf16", {"train.precision=bf16"}, 5e-3},
        Case{"bf16_without_graphs", {"train.precision=bf16", "kernels.graphs=off"}, 5e-3},
        Case{"bf16_accumulated", {"train.precision=bf16", "train.micro_batch=4"}, 5e-3},
        Case{"fp8", {"train.precision=bf16", "train.fp8=true", "model.hidden=128"}, 2e-2},
        Case{"fp8_of_its_own_magnitude",
             {"train.precision=bf16", "train.fp8=true", "train.fp8_scaling=current",
              "model.hidden=128"},
             2e-2},
        Case{"fp8_in_blocks",
             {"train.precision=bf16", "train.fp8=true", "train.fp8_scaling=block",
              "model.hidden=128"},
             2e-2},
        Case{"bf16_in_few_buckets",
             {"train.precision=bf16", "model.depth=6", "parallel.bucket_mib=1"},
             5e-3},
        Case{"bf16_reduced_in_bf16", {"train.precision=bf16", "parallel.reduce_type=bf16"}, 1e-2}),
    testing::PrintToStringParamName());

class SequenceMultiGpuTest : public RunTest, public testing::WithParamInterface<std::string> {
 protected:
  [[nodiscard]] std::vector<double> losses(const std::string& run, Arguments more) const {
    const Arguments clips = joined(
        kReads, {"train.device=cuda", "train.precision=bf16", "train.steps=12", "optim.eps=1e-3",
                 "train.self_test=false", "model.architecture=stdit", "data.source=moving_shapes",
                 "data.frames=4", "data.fps=8", "model.heads=2", "model.hidden=32"});
    more.insert(more.end(), clips.begin(), clips.end());
    train_well(run_dir(run), more);
    std::vector<double> result;
    for (const LogLine& line : read_log(run_dir(run))) {
      result.push_back(line.at("loss"));
    }
    return result;
  }
};

// In a CUDA graph from the third step on.
TEST_P(SequenceMultiGpuTest, EqualsOneGpu) {
  const int64_t gpus = cuda_available() ? cuda_device_count() : 0;
  if (gpus < 2) {
    GTEST_SKIP() << "there are " << gpus << " GPUs, and it needs two";
  }
  const std::vector<double> want = losses("one", {});
  const std::vector<double> got = losses(
      "two", {"parallel.sequence=2", "parallel.sequence_scheme=" + GetParam(), "--ranks", "2"});
  ASSERT_EQ(want.size(), 12U);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 5e-3 * std::abs(want[i])) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, SequenceMultiGpuTest,
                         testing::Values("dsp", "ulysses", "fastseq", "ring"),
                         [](const auto& info) { return info.param; });

class SharedEncoderMultiGpuTest : public RunTest {};

// Blocks are gathered beside the gradients of the step before.
TEST_F(SharedEncoderMultiGpuTest, BlocksHeldInPartsEncodeAsWholeOnes) {
  const int64_t gpus = cuda_available() ? cuda_device_count() : 0;
  if (gpus < 2) {
    GTEST_SKIP() << "there are " << gpus << " GPUs, and it needs two";
  }
  pipelines::write_tiny_t5(folder() / "pipeline");
  const auto losses = [&](const std::string& run, const Arguments& more) {
    train_well(run_dir(run),
               joined({"train.device=cuda", "train.precision=bf16", "train.steps=12",
                       "train.self_test=false", "train.deterministic=true", "data.source=scenes",
                       "data.height=32", "data.width=32", "data.text=tokens",
                       "model.architecture=pixart", "model.text_channels=24",
                       "model.text_tokens=40", "text.encoder=" + path("pipeline"), "text.clean=off",
                       "parallel.zero_stage=3", "--ranks", "2"},
                      more));
    std::vector<double> result;
    for (const LogLine& line : read_log(run_dir(run))) {
      result.push_back(line.at("loss"));
    }
    return result;
  };
  const std::vector<double> whole = losses("whole", {});
  EXPECT_EQ(whole.size(), 12U);
  EXPECT_EQ(losses("parts", {"text.shared=true"}), whole);
}

}  // namespace multi_gpu_ranks_test
}  // namespace kinora::apps
