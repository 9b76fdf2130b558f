#include <gtest/gtest.h>

#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "tests/inference/quantised_drawing.h"
#include "tests/tolerances.h"

namespace kinora::inference {
namespace gpu_quantised_drawing_test {

class GpuQuantisedDrawingTest : public testing::TestWithParam<std::string> {};

// In graphs where the fast path records them.
TEST_P(GpuQuantisedDrawingTest, IsThatOfWhatWeightsStandFor) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  for (const Path path : {Path::kPlain, Path::kFast}) {
    SCOPED_TRACE(path == Path::kFast ? "fast" : "plain");
    expect_drawn_as_its_values(GetParam(), choose_device(DeviceChoice::kCuda), path,
                               Precision::kBf16, tolerance::kWholeModelInBf16);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuQuantisedDrawingTest, testing::ValuesIn(family_keys()),
                         [](const auto& info) { return info.param; });

}  // namespace gpu_quantised_drawing_test
}  // namespace kinora::inference
