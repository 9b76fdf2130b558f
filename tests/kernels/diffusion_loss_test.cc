#include "kinora/kernels/diffusion_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace diffusion_loss_test {

// Rows of the 1000-step linear schedule at t = 0, 1 and 600, unweighted.
const std::vector<float> kTable = {
    0.9999499987499375F,  0.009999999999999449F,  0.010000500037500082F,
    -9.81672513529567F,   0.6063847633194879F,    1.0F,
    0.9998900399904341F,  0.014829292900469677F,  0.008087176628392633F,
    -9.81672513529567F,   0.7880387633463286F,    1.0F,
    0.15989838105953105F, 0.9871334802014067F,    0.012283282944009478F,
    -4.418848776508823F,  0.0003201320586123657F, 1.0F};

/// Four samples of three elements, at row 0 twice, 1 and 2 of the table.
struct Example {
  std::vector<float> x0 = {-1, 1, 0.25, 0.5, -0.75, 0, -1, 1, 0.25, 0.5, -0.75, 0.125};
  std::vector<float> noise = {0.5, -1.25, 0.75, 2, -0.5, 0.25, 1.5, 0.25, -1, -0.125, 0.875, -2};
  std::vector<float> prediction = {0.25,  -1.5, 1,  -0.5, 0.5,  0.25, -1.5,  0.75,
                                   0.5,   0.75, -1, 1,    1,    0.5,  -1.25, 0,
                                   -0.25, 0.5,  0,  0.5,  -1.5, 1,    -0.75, 0.125};
  std::vector<float> weights = {1, 0.5, 2, 0.25};
  std::vector<float> t = {0, 0, 1, 2};
  std::vector<float> mse, vb, total, gradient;
  float mean = 10.0F;

  DiffusionLoss call() {
    mse.assign(4, -1.0F);
    vb.assign(4, -1.0F);
    total.assign(4, -1.0F);
    gradient.assign(prediction.size(), -1.0F);
    DiffusionLoss result;
    result.learned_variance = true;
    result.batch = 4;
    result.sample_size = 3;
    result.prediction_size = 6;
    result.prediction = prediction.data();
    result.noise = noise.data();
    result.x0 = x0.data();
    result.weights = weights.data();
    result.t = t.data();
    result.table = kTable.data();
    result.num_timesteps = 3;
    result.mse = mse.data();
    result.vb = vb.data();
    result.total = total.data();
    result.mean = &mean;
    result.d_prediction = gradient.data();
    return result;
  }
};

TEST(DiffusionLossTest, EqualsTheReferenceOfTraining) {
  // Of tools/reference/iddpm.py in float64.
  const double mse[] = {0.0625, 4.625, 0.125, 0.13541666666666666};
  const double vb[] = {0.9415112085263772, 5.292163284642729, 0.13279788694542394,
                       0.001223132632343744};
  const std::vector<double> gradient = {
      -0.041666666666666664, -0.041666666666666664, 0.041666666666666664,   0.0022368639009116703,
      0.005239182280089169,  0.015823047301057186,  -0.29166666666666663,   0.10416666666666666,
      0.020833333333333332,  -0.11041928463701267,  -0.013306746175622719,  0.008139119535913023,
      -0.16666666666666666,  0.08333333333333333,   -0.08333333333333333,   0.005848755169914524,
      0.009477517942532931,  0.019172571735630778,  0.005208333333333333,   -0.015625,
      0.020833333333333332,  2.994120395528459e-10, -4.139764651216215e-09, -7.096523939572664e-09};
  Example example;
  DiffusionLoss call = example.call();
  call.mean_share = 0.5;
  call.grad_factor = 4.0;
  const float loss_scale = 256.0F;
  call.grad_scale = &loss_scale;
  diffusion_loss(call);
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(example.mse[b], mse[b], 1e-7 * mse[b]);
    EXPECT_NEAR(example.vb[b], vb[b], 1e-5 * vb[b]);  // the table is rounded to fp32
    EXPECT_FLOAT_EQ(example.total[b], example.mse[b] + example.vb[b]);
  }
  EXPECT_NEAR(example.mean, 10.0 + 0.5 * 1.6280871436408355, 1e-5);
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_NEAR(example.gradient[i], 1024.0 * gradient[i], 1e-4 * std::abs(1024.0 * gradient[i]))
        << i;
  }
}

/// The bound in bits at one element by its definition, from means and variances.
double bound_of(const float* row, bool is_first, double x0, double error, double variance) {
  const double low = row[kMinLogVariance];
  const double log_variance = low + 0.5 * (variance + 1.0) * row[kLogVarianceRange];
  const double mean_error = row[kPosteriorDeviation] * error;
  if (!is_first) {
    return 0.5 *
           (log_variance - low - 1.0 + std::exp(low - log_variance) +
            mean_error * mean_error / std::exp(log_variance)) /
           std::log(2.0);
  }
  const auto cdf = [&](double level) {
    const double x = (level - (x0 + mean_error)) / std::exp(0.5 * log_variance);
    return 0.5 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  const double upper = x0 > 0.999 ? 1.0 : cdf(x0 + 1.0 / 255.0);
  const double lower = x0 < -0.999 ? 0.0 : cdf(x0 - 1.0 / 255.0);
  return -std::log(upper - lower) / std::log(2.0);
}

TEST(DiffusionLossTest, GradientsEqualFiniteDifferences) {
  Example example;
  example.weights = {1, 1, 1, 1};
  DiffusionLoss call = example.call();
  call.bound_scale = 0.25;
  diffusion_loss(call);
  constexpr double kStep = 1e-5;
  for (size_t b = 0; b < 4; ++b) {
    const float* row = kTable.data() + static_cast<size_t>(example.t[b]) * kNumDiffusionColumns;
    for (size_t i = 0; i < 3; ++i) {
      const size_t eps = b * 6 + i;
      const double error = static_cast<double>(example.noise[b * 3 + i]) - example.prediction[eps];
      const double variance = example.prediction[eps + 3];
      const auto bound = [&](double v) {
        return bound_of(row, b < 2, example.x0[b * 3 + i], error, v);
      };
      EXPECT_NEAR(example.gradient[eps], -2.0 * error / 12.0, 1e-7);
      const double slope =
          0.25 / 12.0 * (bound(variance + kStep) - bound(variance - kStep)) / (2.0 * kStep);
      EXPECT_NEAR(example.gradient[eps + 3], slope, 1e-5 * std::abs(slope) + 1e-11) << b << i;
    }
  }
}

TEST(DiffusionLossTest, VelocityIgnoresFurtherChannels) {
  Example example;
  DiffusionLoss call = example.call();
  call.target = Target::kVelocity;
  call.learned_variance = false;
  call.table = nullptr;
  call.t = nullptr;
  call.mean_share = 0.5;
  diffusion_loss(call);
  double mean = 0.0;
  for (size_t b = 0; b < 4; ++b) {
    double mse = 0.0;
    for (size_t i = 0; i < 3; ++i) {
      const double error = static_cast<double>(example.prediction[b * 6 + i]) -
                           (example.noise[b * 3 + i] - example.x0[b * 3 + i]);
      mse += error * error / 3.0;
      EXPECT_NEAR(example.gradient[b * 6 + i], example.weights[b] * 2.0 * error / 12.0, 1e-6);
      EXPECT_EQ(example.gradient[b * 6 + 3 + i], 0.0F);
    }
    mean += example.weights[b] * mse / 4.0;
    EXPECT_NEAR(example.mse[b], mse, 1e-6);
    EXPECT_EQ(example.vb[b], 0.0F);
  }
  EXPECT_NEAR(example.mean, 10.0 + 0.5 * mean, 1e-5);
}

TEST(DiffusionLossTest, TargetsAndLossWeightsAreThoseOfTheTable) {
  // Losses by their definition, gradients by finite differences of them.
  constexpr double kStep = 1e-5;
  for (const Target target : {Target::kNoise, Target::kData, Target::kV}) {
    Example example;
    std::vector<float> table = kTable;
    table[kLossWeight] = 0.25F;
    table[kNumDiffusionColumns + kLossWeight] = 3.0F;
    table[2 * kNumDiffusionColumns + kLossWeight] = 0.5F;
    DiffusionLoss call = example.call();
    call.target = target;
    call.table = table.data();
    call.bound_scale = 0.25;
    diffusion_loss(call);
    double mean = 0.0;
    for (size_t b = 0; b < 4; ++b) {
      const float* row = table.data() + static_cast<size_t>(example.t[b]) * kNumDiffusionColumns;
      const auto target_of = [&](size_t i) {
        const double noise = example.noise[b * 3 + i];
        const double x0 = example.x0[b * 3 + i];
        switch (target) {
          case Target::kNoise:
            return noise;
          case Target::kData:
            return x0;
          default:
            return row[kSignal] * noise - row[kNoise] * x0;
        }
      };
      double mse = 0.0;
      double vb = 0.0;
      for (size_t i = 0; i < 3; ++i) {
        const size_t place = b * 6 + i;
        const double error = target_of(i) - example.prediction[place];
        const auto bound = [&](double variance) {
          return bound_of(row, b < 2, example.x0[b * 3 + i], error, variance);
        };
        mse += error * error / 3.0;
        vb += 0.25 * bound(example.prediction[place + 3]) / 3.0;
        const double scale = example.weights[b] / 12.0;
        EXPECT_NEAR(example.gradient[place], -2.0 * scale * row[kLossWeight] * error, 1e-7);
        const double variance = example.prediction[place + 3];
        const double slope =
            0.25 * scale * (bound(variance + kStep) - bound(variance - kStep)) / (2.0 * kStep);
        EXPECT_NEAR(example.gradient[place + 3], slope, 1e-5 * std::abs(slope) + 1e-9);
      }
      EXPECT_NEAR(example.mse[b], mse, 1e-6 * mse);
      EXPECT_NEAR(example.vb[b], vb, 1e-5 * vb);
      EXPECT_NEAR(example.total[b], row[kLossWeight] * mse + vb, 1e-5 * (mse + vb));
      mean += example.weights[b] * (row[kLossWeight] * mse + vb) / 4.0;
    }
    EXPECT_NEAR(example.mean, 10.0 + mean, 1e-4);
  }
}

TEST(DiffusionLossTest, NanPropagatesAndATimestepOutsideOfTheTableIsNan) {
  Example example;
  example.prediction[0] = NAN;
  example.prediction[9] = INFINITY;  // a variance at t = 0
  example.prediction[13] = INFINITY;
  example.t[3] = 3.0F;
  diffusion_loss(example.call());
  EXPECT_TRUE(std::isnan(example.mse[0]));
  EXPECT_TRUE(std::isnan(example.gradient[0]));
  EXPECT_EQ(example.mse[2], INFINITY);
  EXPECT_TRUE(std::isnan(example.vb[3]));
  EXPECT_FALSE(std::isnan(example.mse[3]));
  EXPECT_TRUE(std::isnan(example.mean));
}

}  // namespace diffusion_loss_test
}  // namespace kinora::kernels
