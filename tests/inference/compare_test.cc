#include "kinora/inference/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kinora/core/error.h"
#include "kinora/ops/random.h"
#include "tests/train/tiny_dit.h"

namespace kinora::inference {
namespace compare_test {

using testing::Contains;
using testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor vector(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kFloat);
}

TEST(CompareTest, DifferencesOfVectorsAreThoseOfGeometry) {
  const OutputDifference right_angle = difference(vector({1, 0}), vector({1, 1}));
  EXPECT_DOUBLE_EQ(right_angle.relative_error, 1.0);
  EXPECT_DOUBLE_EQ(right_angle.cosine, 1.0 / std::numbers::sqrt2);
  EXPECT_DOUBLE_EQ(right_angle.largest, 1.0);
  const OutputDifference scaled = difference(vector({3, 4}), vector({6, 8}));
  EXPECT_DOUBLE_EQ(scaled.relative_error, 1.0);
  EXPECT_DOUBLE_EQ(scaled.cosine, 1.0);
  EXPECT_DOUBLE_EQ(scaled.largest, 4.0);
  const OutputDifference same = difference(vector({2, -1}), vector({2, -1}));
  EXPECT_EQ(same.relative_error, 0.0);
  EXPECT_DOUBLE_EQ(same.cosine, 1.0);
}

TEST(CompareTest, ZerosAndWhatIsNotFiniteHaveDifferences) {
  EXPECT_EQ(difference(vector({0, 0}), vector({0, 0})).relative_error, 0.0);
  EXPECT_EQ(difference(vector({0, 0}), vector({0, 0})).cosine, 1.0);
  EXPECT_EQ(difference(vector({0, 0}), vector({0, 1})).relative_error, kInfinity);
  EXPECT_EQ(difference(vector({0, 0}), vector({0, 1})).cosine, 0.0);
  EXPECT_EQ(difference(vector({0, 1}), vector({0, 0})).relative_error, 1.0);
  EXPECT_EQ(difference(vector({0, 1}), vector({0, NAN})).relative_error, kInfinity);
  EXPECT_EQ(difference(vector({0, kInfinity}), vector({0, kInfinity})).relative_error, 0.0);
  EXPECT_THROW((void)difference(vector({1}), vector({1, 2})), Error);
}

class CompareModelsTest : public testing::Test {
 protected:
  static ModelRecipe recipe(Precision precision) {
    ModelRecipe recipe;
    recipe.model = train::TinyDit::config();
    recipe.precision = precision;
    return recipe;
  }

  /// The same random weights in each model, none zero.
  static TrainedModel model(Precision precision = Precision::kFp32) {
    TrainedModel made = initial_model(recipe(precision), at::kCPU, 1);
    train::TinyDit tiny;
    for (const auto& [path, parameter] : tiny.model.named_parameters()) {
      made.arena->load_parameter(path, parameter->value.detach());
    }
    return made;
  }

  static ComparedInput input(const TrainedModel& of) {
    const at::Tensor index = at::arange(3, at::kLong);
    const at::Tensor x0 =
        ops::random_normal({3, 3, 16, 16}, index, 5, 0, RandomPurpose::kTest, at::kCPU);
    ComparedInput input{
        .batch = diffusion::noise_at(
            of.objective, x0, {.t = at::tensor({10.0F, 500.0F, 990.0F}), .weights = at::ones({3})},
            {.seed = 5,
             .step = 0,
             .sample_index = index,
             .noise = RandomPurpose::kTest,
             .timestep = RandomPurpose::kTest}),
        .conditions = {}};
    input.conditions.labels = index;
    return input;
  }
};

TEST_F(CompareModelsTest, EqualModelsDifferNowhere) {
  TrainedModel a = model();
  TrainedModel b = model();
  const Comparison found = compare(a, b, input(a));
  EXPECT_GT(found.modules.size(), 20U);
  EXPECT_EQ(found.first_above(0.0), nullptr);
  EXPECT_EQ(found.prediction.relative_error, 0.0);
  EXPECT_THAT(found.only_in_a, IsEmpty());
  EXPECT_THAT(found.only_in_b, IsEmpty());
  EXPECT_TRUE(found.modules.back().module.empty());  // the model itself comes last
}

TEST_F(CompareModelsTest, TheFirstModuleThatDiffersIsFound) {
  TrainedModel a = model();
  TrainedModel b = model();
  const char* const weight = "blocks.1.mlp.fc1.weight";
  train::TinyDit tiny;
  for (const auto& [path, parameter] : tiny.model.named_parameters()) {
    if (path == weight) {
      b.arena->load_parameter(path, parameter->value.detach() * 1.01);
    }
  }
  const Comparison found = compare(a, b, input(a));
  const OutputDifference* first = found.first_above(1e-4);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->module, "blocks.1.mlp.fc1");
  EXPECT_GT(found.prediction.relative_error, 0.0);
  for (const OutputDifference& output : found.modules) {
    if (output.module.starts_with("blocks.0") || output.module.starts_with("x_embedder")) {
      EXPECT_EQ(output.relative_error, 0.0) << output.module;
    }
  }
}

TEST_F(CompareModelsTest, PrecisionsDifferByTheirRounding) {
  TrainedModel a = model();
  TrainedModel b = model(Precision::kBf16);
  const Comparison found = compare(a, b, input(a));
  const double rounding = 1.0 / 512.0;  // half of the last of 8 bits
  EXPECT_NE(found.first_above(0.1 * rounding), nullptr);
  EXPECT_GT(found.prediction.relative_error, 0.0);
  EXPECT_LT(found.prediction.relative_error, 20.0 * rounding);
  EXPECT_EQ(found.first_above(20.0 * rounding), nullptr);
}

TEST_F(CompareModelsTest, ModulesOfOneSideAreNamed) {
  TrainedModel a = model();
  ModelRecipe shallow = recipe(Precision::kFp32);
  shallow.model.transformer.depth = 1;
  TrainedModel b = initial_model(shallow, at::kCPU, 1);
  const Comparison found = compare(a, b, input(a));
  EXPECT_THAT(found.only_in_a, Contains("blocks.1.mlp.fc1"));
  EXPECT_THAT(found.only_in_b, IsEmpty());
}

}  // namespace compare_test
}  // namespace kinora::inference
