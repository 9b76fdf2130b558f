// The thousand steps of memory_watch_test.cc on a GPU, below a budget, by its allocator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kinora/core/cuda.h"
#include "tests/apps/memory_watch.h"
#include "tests/apps/program_server.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace gpu_memory_watch_test {

using testing::HasSubstr;

class GpuMemoryWatchTest : public RunTest {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "there is no GPU: " << cuda_unavailable_reason();
    }
  }

  static Arguments settings(const Arguments& more = {}) {
    return joined(joined(kThousandSteps,
                         {"train.device=cuda", "train.precision=bf16", "train.vram_budget=2GiB"}),
                  more);
  }
  // What the allocator counts is exact; 16 KiB a step would be 11 MiB.
  static constexpr MemoryWatch kWatch{.slack = 1 << 20, .cap = int64_t{2} << 30};
};

TEST_F(GpuMemoryWatchTest, AThousandStepsStayBelowTheBudget) {
  train_well(run_dir("long"), settings());
  EXPECT_EQ(kWatch.fault_of(run_dir("long")), "");
}

TEST_F(GpuMemoryWatchTest, FindsAPlantedLeak) {
  train_well(run_dir("leaks"), settings({std::string("model.architecture=") + kLeakyFamily}));
  EXPECT_THAT(kWatch.fault_of(run_dir("leaks")), HasSubstr("the peak rose by "));
}

}  // namespace gpu_memory_watch_test
}  // namespace kinora::apps
