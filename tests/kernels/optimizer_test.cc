#include "kinora/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kinora/kernels/sum_squares.h"
#include "tests/kernels/optimizer_arrays.h"

namespace kinora::kernels {
namespace optimizer_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

StepControl prepared(double sum_squares, const UpdatePolicy& policy, float loss_scale = 1.0F) {
  StepControl control;
  control.grad_sum_squares = sum_squares;
  control.loss_scale = loss_scale;
  control.lr = 3e-3;
  prepare_update(&control, policy);
  return control;
}

TEST(SumSquaresTest, IsExactForSmallIntegers) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    std::vector<float> x(static_cast<size_t>(count));
    std::iota(x.begin(), x.end(), 1.0F);
    const int64_t expected = count * (count + 1) * (2 * count + 1) / 6;
    EXPECT_EQ(sum_squares(x.data(), count), static_cast<double>(expected));
  }
}

TEST(SumSquaresTest, FiniteGradientsHaveAFiniteSum) {
  const std::vector<float> huge(100, 3e38F);
  EXPECT_NEAR(sum_squares(huge.data(), 100) / (100 * 9e76), 1.0, 1e-6);
  const std::vector<float> bad = {1.0F, kInfinity};
  EXPECT_EQ(sum_squares(bad.data(), 2), std::numeric_limits<double>::infinity());
}

TEST(PrepareUpdateTest, ClipsToTheNorm) {
  UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  EXPECT_FLOAT_EQ(prepared(25.0, policy).grad_norm, 5.0F);
  EXPECT_FLOAT_EQ(prepared(25.0, policy).multiplier, 1.0F / (5.0F + 1e-6F));
  EXPECT_EQ(prepared(0.25, policy).multiplier, 1.0F);
  policy.max_grad_norm = 0.0;
  EXPECT_EQ(prepared(25.0, policy).multiplier, 1.0F);
}

TEST(PrepareUpdateTest, UnscalesBeforeItClips) {
  UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  policy.dynamic_loss_scale = true;
  const StepControl control = prepared(25.0 * 1024.0 * 1024.0, policy, 1024.0F);
  EXPECT_FLOAT_EQ(control.grad_norm, 5.0F);
  EXPECT_FLOAT_EQ(control.multiplier, 1.0F / 1024.0F / (5.0F + 1e-6F));
}

TEST(PrepareUpdateTest, CountsStepsAndCorrectsBias) {
  UpdatePolicy policy;
  policy.beta1 = 0.5;
  policy.beta2 = 0.75;
  StepControl control;
  prepare_update(&control, policy);
  EXPECT_EQ(control.applied_steps, 1);
  EXPECT_DOUBLE_EQ(control.bias_correction1, 0.5);
  EXPECT_DOUBLE_EQ(control.bias_correction2_sqrt, 0.5);
  prepare_update(&control, policy);
  EXPECT_EQ(control.applied_steps, 2);
  EXPECT_DOUBLE_EQ(control.bias_correction1, 0.75);
  EXPECT_DOUBLE_EQ(control.bias_correction2_sqrt, std::sqrt(7.0 / 16.0));
  EXPECT_EQ(control.grad_sum_squares, 0.0);
}

TEST(PrepareUpdateTest, SkipsWhatIsNotFinite) {
  for (const double sum :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const StepControl control = prepared(sum, {});
    EXPECT_EQ(control.skip, 1);
    EXPECT_EQ(control.applied_steps, 0);
    EXPECT_EQ(control.skipped_steps, 1);
    EXPECT_EQ(control.loss_scale, 1.0F) << "not dynamic";
    EXPECT_EQ(control.grad_sum_squares, 0.0) << "the next step starts afresh";
  }
}

TEST(PrepareUpdateTest, LossScaleGrowsAfterTheIntervalAndNeverToInfinity) {
  UpdatePolicy policy;
  policy.dynamic_loss_scale = true;
  StepControl control;
  control.loss_scale = kInitialLossScale;
  for (int step = 1; step < 2000; ++step) {
    prepare_update(&control, policy);
  }
  EXPECT_EQ(control.loss_scale, 65536.0F);
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 131072.0F);
  control.loss_scale = 0x1p127F;
  control.good_steps = 1999;
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 0x1p127F);
  control.grad_sum_squares = std::numeric_limits<double>::infinity();
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 0x1p126F);
}

TEST(StepExchangeTest, LearningRatesComeInAndReportsGoOutInTurn) {
  StepExchange exchange;
  StepControl control;
  const float loss = 1.5F;
  for (int64_t step = 1; step <= 2 * kStepRing; ++step) {
    exchange.lr[step % kStepRing] = static_cast<double>(step);
    control.grad_sum_squares = step == 3 ? NAN : 4.0;
    prepare_update(&control, {}, &exchange);
    EXPECT_EQ(control.steps, step);
    EXPECT_EQ(control.lr, static_cast<double>(step));
    volatile StepReport* report = write_report(control, step == 5 ? nullptr : &loss, &exchange);
    EXPECT_EQ(report, &exchange.reports[step % kStepRing]);
    EXPECT_EQ(report->skipped, step == 3 ? 1 : 0);
    EXPECT_EQ(report->applied_steps, step < 3 ? step : step - 1);
    EXPECT_EQ(std::isnan(report->loss), step == 5);
    EXPECT_EQ(report->grad_norm == 2.0F, step != 3);
  }
}

TEST(BucketTest, ChunksAreNumberedThrough) {
  alignas(16) float array[8] = {};
  std::vector<UpdateBucket> buckets(4);
  const int64_t counts[] = {kBucketChunk, 0, kBucketChunk + 1, 7};
  for (size_t i = 0; i < 4; ++i) {
    buckets[i].count = counts[i];
    buckets[i].buffers.grad = array + (i == 3 ? 1 : 0);
  }
  EXPECT_EQ(number_chunks(buckets), 4);
  EXPECT_EQ(buckets[1].first_chunk, 1);
  EXPECT_EQ(buckets[2].first_chunk, 1);
  EXPECT_EQ(buckets[3].first_chunk, 3);
  EXPECT_EQ(buckets[0].aligned, 1);
  EXPECT_EQ(buckets[3].aligned, 0);
}

TEST(UpdateWeightsTest, FirstStepMovesByTheLearningRate) {
  // m / (1 - beta1) = g and sqrt(v / (1 - beta2)) = |g|, whatever g: Kingma and Ba 2015,
  // section 2.1.
  OptimizerArrays arrays(1, 0, DType::kF32);
  arrays.master[0] = 2.0F;
  arrays.exp_avg[0] = 0.0F;
  arrays.exp_avg_sq[0] = 0.0F;
  arrays.grad[0] = -1e-3F;
  UpdateParameters parameters;
  parameters.weight_decay = 0.1;
  StepControl control = prepared(1e-6, {});
  control.lr = 0.01;
  update_weights(arrays.buffers(), parameters, control, 0, 1);
  EXPECT_NEAR(arrays.master[0], 2.0 * (1.0 - 0.01 * 0.1) + 0.01, 1e-6);
  EXPECT_EQ(arrays.grad[0], 0.0F);
}

TEST(UpdateWeightsTest, SplitsOfTheRangeGiveTheSameBits) {
  const int64_t count = 2'500;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    OptimizerArrays whole(count, 3, type);
    const UpdateParameters parameters = whole.parameters();
    UpdatePolicy policy;
    policy.max_grad_norm = 1.0;
    const StepControl control = prepared(10.0, policy);
    OptimizerArrays split = whole;
    update_weights(whole.buffers(), parameters, control, 0, count);
    int64_t begin = 0;
    for (const int64_t size : {1, 7, 1024, 33, 500, 935}) {
      update_weights(split.buffers(), parameters, control, begin, begin + size);
      begin += size;
    }
    ASSERT_EQ(begin, count);
    EXPECT_EQ(whole, split);
  }
}

TEST(UpdateWeightsTest, AveragesAndCopiesFollowTheNewWeights) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    OptimizerArrays arrays(77, kMaxEmas, type);
    const OptimizerArrays before = arrays;
    const UpdateParameters parameters = arrays.parameters();
    update_weights(arrays.buffers(), parameters, prepared(1.0, {}), 0, 77);
    for (size_t i = 0; i < 77; ++i) {
      EXPECT_NE(arrays.master[i], before.master[i]);
      for (size_t k = 0; k < kMaxEmas; ++k) {
        const double decay = parameters.ema_decay[k];
        const double expected =
            before.ema[k][i] * decay + static_cast<double>(arrays.master[i]) * (1.0 - decay);
        EXPECT_NEAR(arrays.ema[k][i], expected, 1e-6 * std::abs(expected) + 1e-7);
      }
      EXPECT_EQ(arrays.compute[i], type == DType::kBF16 ? float_to_bf16(arrays.master[i])
                                                        : float_to_f16(arrays.master[i]));
    }
  }
}

TEST(UpdateWeightsTest, ASkippedStepOnlyZerosTheGradient) {
  OptimizerArrays arrays(100, 2, DType::kBF16);
  OptimizerArrays expected = arrays;
  expected.grad.assign(100, 0.0F);
  const StepControl control = prepared(std::numeric_limits<double>::quiet_NaN(), {});
  update_weights(arrays.buffers(), arrays.parameters(), control, 0, 100);
  EXPECT_EQ(arrays, expected);
}

}  // namespace optimizer_test
}  // namespace kinora::kernels
