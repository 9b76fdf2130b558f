#include "kinora/train/validation.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kinora/data/shapes.h"
#include "tests/train/tiny_dit.h"

namespace kinora::train {
namespace validation_test {

// 8 samples in 2 bands over [0, 1): times in the middle of quarters of each band.
TEST(ValidationTimeTest, IsSpreadEvenlyOverEveryBand) {
  const double expected[] = {0.0625, 0.5625, 0.1875, 0.6875, 0.3125, 0.8125, 0.4375, 0.9375};
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(validation_time(i, 8, 2, {0.0, 1.0}), expected[i]) << i;
  }
  std::set<double> seen;
  for (int64_t i = 0; i < 60; ++i) {
    const double t = validation_time(i, 60, 4, {0.0, 1000.0});
    EXPECT_GE(t, 250.0 * static_cast<double>(i % 4));
    EXPECT_LT(t, 250.0 * static_cast<double>(i % 4 + 1));
    EXPECT_TRUE(seen.insert(t).second) << "no time twice";
  }
}

/// Predicts zero, or with `scale` the noised image; remembers what it was asked.
class Zero : public diffusion::Denoiser {
 public:
  explicit Zero(double scale = 0.0) : scale_(scale) {}
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& /*pass*/) override {
    for (int64_t i = 0; i < t.size(0); ++i) {
      times.push_back(t[i].item<double>());
      labels.push_back(conditions.labels[i].item<int64_t>());
    }
    return x_t * scale_;
  }
  std::vector<double> times;
  std::vector<int64_t> labels;

 private:
  double scale_;
};

class ValidationTest : public testing::Test {
 protected:
  static constexpr int64_t kCount = 16;

  [[nodiscard]] Validation make(int64_t micro_batch, int64_t bands = 4, uint64_t seed = 1) const {
    return {source_, {.height = 16, .width = 16}, stage_, TinyDit::config(), bands, micro_batch,
            seed};
  }

  const data::ShapeSource source_{9, kCount, 16, 16};
  const EncodeStage stage_{0, at::kCPU};
  const diffusion::Objective iddpm_ = diffusion::Iddpm(1000, false);
  const diffusion::Objective hybrid_ = diffusion::Iddpm(1000, true);
  const diffusion::Objective flow_ = diffusion::RectifiedFlow();
};

TEST_F(ValidationTest, VisitsEverySampleOnceAtItsTime) {
  for (const diffusion::Objective& objective : {iddpm_, flow_}) {
    Zero zero;
    (void)make(5).evaluate(zero, objective, at::kCPU);
    ASSERT_EQ(zero.times.size(), static_cast<size_t>(kCount));
    const auto range = diffusion::time_range(objective);
    for (int64_t i = 0; i < kCount; ++i) {
      const double exact = validation_time(i, kCount, 4, range);
      EXPECT_FLOAT_EQ(zero.times[static_cast<size_t>(i)],
                      range.second > 1.0 ? std::floor(exact) : exact);
      EXPECT_EQ(zero.labels[static_cast<size_t>(i)], i % data::kNumShapeClasses);
    }
  }
}

// The error of predicting no noise is the noise's mean square: one, within 5 standard errors of
// sqrt(2 / elements).
TEST_F(ValidationTest, LossIsTheMeanSquaredErrorOfThePrediction) {
  Zero zero;
  const ValidationLoss loss = make(kCount).evaluate(zero, iddpm_, at::kCPU);
  ASSERT_EQ(loss.bands.size(), 4U);
  double sum = 0.0;
  for (const double band : loss.bands) {
    EXPECT_NEAR(band, 1.0, 5 * std::sqrt(2.0 / (4 * 3 * 16 * 16)));
    sum += band;
  }
  EXPECT_DOUBLE_EQ(loss.mean, sum / 4);
  // With x_t for the noise the cleanest band is worst.
  Zero same(1.0);
  const ValidationLoss of_same = make(kCount).evaluate(same, iddpm_, at::kCPU);
  EXPECT_GT(of_same.bands[0], of_same.bands[3]);
}

TEST_F(ValidationTest, LossWeightsDoNotCount) {
  for (const diffusion::Prediction prediction :
       {diffusion::Prediction::kEps, diffusion::Prediction::kData, diffusion::Prediction::kV}) {
    diffusion::IddpmOptions options{.betas = diffusion::linear_betas(1000),
                                    .prediction = prediction,
                                    .learned_variance = false};
    Zero zero;
    const ValidationLoss plain = make(5).evaluate(zero, diffusion::Iddpm(options), at::kCPU);
    options.weights.kind = diffusion::LossWeights::Kind::kMinSnr;
    const ValidationLoss weighted = make(5).evaluate(zero, diffusion::Iddpm(options), at::kCPU);
    EXPECT_EQ(plain.bands, weighted.bands);
    EXPECT_GT(plain.mean, 0.0);
  }
}

TEST_F(ValidationTest, DependsOnWeightsSeedAndSamplesOnly) {
  TinyDit tiny;
  const Validation validation = make(4);
  const ValidationLoss first = validation.evaluate(tiny.model, hybrid_, at::kCPU);
  const ValidationLoss again = validation.evaluate(tiny.model, hybrid_, at::kCPU);
  EXPECT_EQ(first.mean, again.mean);
  EXPECT_EQ(first.bands, again.bands);
  const ValidationLoss at_once = make(16).evaluate(tiny.model, hybrid_, at::kCPU);
  EXPECT_NEAR(at_once.mean, first.mean, 1e-6);
  EXPECT_NE(make(4, 4, 2).evaluate(tiny.model, hybrid_, at::kCPU).mean, first.mean);
  const std::string path = "blocks.0.attn.proj.bias";
  const at::Tensor value = tiny.arena.export_parameter(path, optim::Role::master()).clone();
  tiny.arena.load_parameter(path, value + 0.5);
  EXPECT_NE(validation.evaluate(tiny.model, hybrid_, at::kCPU).mean, first.mean);
  tiny.arena.load_parameter(path, value);
  EXPECT_EQ(validation.evaluate(tiny.model, hybrid_, at::kCPU).mean, first.mean);
}

TEST_F(ValidationTest, LeavesNoGradients) {
  TinyDit tiny;
  (void)make(4).evaluate(tiny.model, hybrid_, at::kCPU);
  for (const auto& [path, parameter] : tiny.model.named_parameters()) {
    EXPECT_EQ(parameter->grad.abs().max().item<double>(), 0.0) << path;
  }
}

}  // namespace validation_test
}  // namespace kinora::train
