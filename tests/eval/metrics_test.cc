// Figures of features and pairs against published implementations (tools/make_eval_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kinora/device/host_bytes.h"
#include "kinora/eval/class_agreement.h"
#include "kinora/eval/feature_statistics.h"
#include "kinora/eval/inception_score.h"
#include "kinora/eval/kernel_distance.h"
#include "kinora/eval/manifold.h"
#include "kinora/eval/pair_scores.h"
#include "kinora/io/safetensors.h"
#include "tests/error_of.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::eval {
namespace metrics_test {

using testing::HasSubstr;

constexpr double kNoise = 1e-9;

class MetricsTest : public testing::Test {
 protected:
  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* const found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] double expected(const std::string& name) const {
    return tensor("expected." + name).item<double>();
  }
  [[nodiscard]] io::Image image(const std::string& name) const {
    const at::Tensor pixels = tensor(name);
    io::Image image;
    io::set_size(image, pixels.size(0), pixels.size(1));
    std::memcpy(image.pixels.data(), pixels.const_data_ptr(), image.pixels.size());
    return image;
  }

  io::SafetensorsFile file_ =
      io::SafetensorsFile::open(source_path("tests/eval/data/metrics.safetensors"));
};

Gaussian gaussian_of(const at::Tensor& features) {
  FeatureStatistics statistics(features.size(1));
  statistics.add(features);
  return statistics.gaussian();
}

TEST_F(MetricsTest, StatisticsEqualNumpys) {
  const Gaussian gaussian = gaussian_of(tensor("a"));
  EXPECT_EQ(gaussian.count, 160);
  EXPECT_TRUE(at::allclose(gaussian.mean, tensor("mean"), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(gaussian.covariance, tensor("covariance"), 1e-12, 1e-12));
}

TEST_F(MetricsTest, HowRowsAreDividedChangesNoBit) {
  // More than two blocks, whose means differ.
  const at::Tensor rows =
      at::arange(2500, at::kDouble).unsqueeze(1) * at::tensor({1.0, -0.5, 0.0}) + 1e6;
  const at::Tensor features = at::cat({rows.sin(), rows * 1e-3}, 1);
  FeatureStatistics parts(6);
  for (int64_t first = 0; first < 2500; first += 77) {
    parts.add(features.slice(0, first, first + 77));
  }
  const Gaussian whole = gaussian_of(features);
  EXPECT_TRUE(parts.gaussian().mean.equal(whole.mean));
  EXPECT_TRUE(parts.gaussian().covariance.equal(whole.covariance));
  const at::Tensor centred = features - features.mean(0);
  const at::Tensor direct = centred.t().mm(centred) / 2499.0;
  EXPECT_TRUE(at::allclose(whole.covariance, direct, 1e-10, 1e-10));
}

TEST_F(MetricsTest, StatisticsRefuseOthers) {
  FeatureStatistics statistics(3);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         statistics.add(at::zeros({2, 4}));
                         return 0;
                       }),
              HasSubstr("[B, 3]"));
  statistics.add(at::zeros({1, 3}));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return statistics.gaussian(); }),
              HasSubstr("at least 2 samples, got 1"));
  statistics.add(at::full({1, 3}, std::nan("")));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return statistics.gaussian(); }),
              HasSubstr("finite"));
}

TEST_F(MetricsTest, FrechetDistanceEqualsScipys) {
  const Gaussian a = gaussian_of(tensor("a"));
  const Gaussian b = gaussian_of(tensor("b"));
  const double want = expected("frechet");
  EXPECT_NEAR(frechet_distance(a, b), want, tolerance::kStored * want);
  EXPECT_NEAR(frechet_distance(b, a), want, tolerance::kStored * want);
  EXPECT_NEAR(frechet_distance(a, a), 0.0, kNoise);
}

TEST_F(MetricsTest, FrechetDistanceBearsSingularCovariances) {
  const Gaussian few = gaussian_of(tensor("a").narrow(0, 0, 9));
  const double want = expected("frechet_singular");
  // SciPy's root of a singular product is good to about the root of the double's precision.
  EXPECT_NEAR(frechet_distance(few, gaussian_of(tensor("b"))), want, 1e-4 * want);
}

// |m|^2 + sum (s1 - s2)^2 for diagonal covariances.
TEST_F(MetricsTest, FrechetDistanceHasItsClosedForm) {
  const at::Tensor variances = at::tensor({1.0, 4.0, 0.0}, at::kDouble);
  const Gaussian a{.mean = at::zeros({3}, at::kDouble), .covariance = variances.diag()};
  const Gaussian b{.mean = at::full({3}, 2.0, at::kDouble),
                   .covariance = at::eye(3, at::kDouble) * 9.0};
  EXPECT_NEAR(frechet_distance(a, b), 12.0 + 4.0 + 1.0 + 9.0, kNoise);
  EXPECT_THAT(
      error_of(ErrorKind::kShape, [&] { return frechet_distance(a, gaussian_of(tensor("a"))); }),
      HasSubstr("different networks"));
}

TEST_F(MetricsTest, InceptionScoreEqualsTorchFidelitys) {
  const InceptionScore score = inception_score(tensor("logits"));
  EXPECT_NEAR(score.mean, expected("inception_score"), tolerance::kStored);
  EXPECT_NEAR(score.std, expected("inception_score_std"), tolerance::kStored);
  // K sure classes, all equally often: K; one class only: 1.
  const at::Tensor sure = at::eye(5, at::kDouble).repeat({8, 1}) * 1e5;
  EXPECT_NEAR(inception_score(sure, 1).mean, 5.0, kNoise);
  EXPECT_NEAR(inception_score(at::ones({20, 4})).mean, 1.0, kNoise);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return inception_score(at::ones({9, 4}));
                       }),
              HasSubstr("at least 10"));
}

TEST_F(MetricsTest, PrecisionAndRecallEqualTorchFidelitysAndPrdcs) {
  const ManifoldScores scores = manifold_scores(tensor("a"), tensor("b"));
  EXPECT_NEAR(scores.precision, expected("precision"), tolerance::kStored);
  EXPECT_NEAR(scores.recall, expected("recall"), tolerance::kStored);
  EXPECT_NEAR(scores.density, expected("density"), tolerance::kStored);
  EXPECT_NEAR(scores.coverage, expected("coverage"), tolerance::kStored);
  const ManifoldScores mirrored = manifold_scores(tensor("b"), tensor("a"));
  EXPECT_NEAR(mirrored.precision, expected("recall"), tolerance::kStored);
}

TEST_F(MetricsTest, PrecisionAndRecallOfManyBlocks) {
  // Points on a line, a distance of 1 apart: radii are 2 for k = 3 but at the ends, where they
  // are 3.
  const at::Tensor reference = at::arange(2100, at::kFloat).unsqueeze(1);
  EXPECT_EQ(manifold_scores(reference + 0.25, reference).precision, 1.0);
  EXPECT_EQ(manifold_scores(reference + 0.25, reference).coverage, 1.0);
  const ManifoldScores half = manifold_scores(reference + 1050.0, reference);
  // Below the last point and 3 above it: 1050 + 3 of 2100.
  EXPECT_NEAR(half.precision, 1053.0 / 2100.0, tolerance::kStored);
  EXPECT_NEAR(half.recall, 1053.0 / 2100.0, tolerance::kStored);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return manifold_scores(at::ones({3, 1}), reference);
                       }),
              HasSubstr("more than 3 samples"));
}

TEST_F(MetricsTest, KernelDistanceEqualsTorchFidelitys) {
  const double want = expected("kernel");
  EXPECT_NEAR(kernel_distance(tensor("a"), tensor("b")), want, tolerance::kStored * want);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return kernel_distance(at::ones({1, 2}), at::ones({4, 2}));
                       }),
              HasSubstr("at least 2"));
}

TEST_F(MetricsTest, PairsEqualScikitImages) {
  EXPECT_NEAR(psnr(image("left"), image("right")), expected("psnr"), tolerance::kStored);
  EXPECT_NEAR(ssim(image("left"), image("right")), expected("ssim"), tolerance::kStored);
  EXPECT_EQ(psnr(image("left"), image("left")), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(ssim(image("left"), image("left")), 1.0, kNoise);
  io::Image small;
  io::set_size(small, 10, 53);
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return psnr(small, image("left")); }),
              HasSubstr("got 10 x 53 and 40 x 53"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return ssim(small, small); }),
              HasSubstr("at least 11 x 11"));
}

TEST_F(MetricsTest, ClassAgreementCounts) {
  const at::Tensor logits = at::eye(3);
  const auto agreement = [&](const std::vector<int64_t>& labels) {
    return class_agreement(logits, at::tensor(labels, at::kLong));
  };
  EXPECT_EQ(agreement({0, 1, 2}).num_right, 3);
  EXPECT_EQ(agreement({0, 2, 2}).num_right, 2);
  EXPECT_EQ(agreement({0, 2, 2}).num_samples, 3);
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return agreement({0, -1, 2});
                       }),
              HasSubstr("--labels"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return agreement({0, 1, 3});
                       }),
              HasSubstr("below 3"));
}

}  // namespace metrics_test
}  // namespace kinora::eval
