#include <gtest/gtest.h>

#include <iostream>

#include "tests/tolerances.h"
#include "tests/train/reference_training.h"

namespace kinora::train {
namespace reference_training_test {

class ReferenceTrainingTest : public testing::TestWithParam<int64_t> {};

TEST_P(ReferenceTrainingTest, FiftyStepsEqualPyTorch) {
  const Distances far = train_like_the_reference(at::kCPU, at::kFloat, GetParam());
  EXPECT_LT(far.loss, tolerance::kWholeModel);
  EXPECT_LT(far.grad_norm, tolerance::kWholeModel);
  EXPECT_LT(far.weights, tolerance::kWholeModel) << far.worst;
  EXPECT_LT(far.average, tolerance::kWholeModel);
}

INSTANTIATE_TEST_SUITE_P(RecomputedBlocks, ReferenceTrainingTest, testing::Values(0, 1, 2));

// bf16 has 8 bits of mantissa: 2^-8 = 4e-3 of a product, and 50 steps of it. The masters, which
// are fp32, stay much closer than the activations.
TEST(ReferenceTrainingBf16Test, FiftyStepsStayNearPyTorch) {
  const Distances far = train_like_the_reference(at::kCPU, at::kBFloat16);
  EXPECT_LT(far.loss, 2e-2);
  EXPECT_LT(far.grad_norm, 5e-2);
  EXPECT_LT(far.weights, 5e-2) << far.worst;
  EXPECT_GT(far.weights, tolerance::kWholeModel) << "this was fp32";
}

}  // namespace reference_training_test
}  // namespace kinora::train
