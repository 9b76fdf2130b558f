// A thousand steps, with samples and validation inside, take no more memory than the first ones;
// and who watches that sees a leak.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/apps/memory_watch.h"
#include "tests/apps/program_server.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace memory_watch_test {

using testing::HasSubstr;

class MemoryWatchTest : public RunTest {
 protected:
  static Arguments settings(const Arguments& more = {}) { return joined(kThousandSteps, more); }
  // 16 KiB a step would be 11 MiB.
  static constexpr MemoryWatch kWatch{.slack = 6 << 20, .cap = int64_t{600} << 20};
};

TEST_F(MemoryWatchTest, AThousandStepsTakeWhatTheFirstOnesTake) {
  train_well(run_dir("long"), settings());
  EXPECT_EQ(kWatch.fault_of(run_dir("long")), "");
}

TEST_F(MemoryWatchTest, FindsAPlantedLeak) {
  train_well(run_dir("leaks"), settings({std::string("model.architecture=") + kLeakyFamily}));
  EXPECT_THAT(kWatch.fault_of(run_dir("leaks")), HasSubstr("the peak rose by "));
}

}  // namespace memory_watch_test
}  // namespace kinora::apps
