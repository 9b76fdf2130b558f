#include "tests/inference/quantised_drawing.h"

#include <gtest/gtest.h>

namespace kinora::inference {
namespace quantised_drawing_test {

class QuantisedDrawingTest : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedDrawingTest, IsThatOfWhatWeightsStandFor) {
  for (const Path path : {Path::kPlain, Path::kFast}) {
    SCOPED_TRACE(path == Path::kFast ? "fast" : "plain");
    expect_drawn_as_its_values(GetParam(), at::kCPU, path, Precision::kFp32);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, QuantisedDrawingTest, testing::ValuesIn(family_keys()),
                         [](const auto& info) { return info.param; });

}  // namespace quantised_drawing_test
}  // namespace kinora::inference
