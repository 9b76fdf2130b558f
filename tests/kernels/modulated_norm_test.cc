#include "kinora/kernels/modulated_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace modulated_norm_test {

// Odd, and the last vector has fewer rows than the others.
constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 7;
constexpr int64_t kRowsPerVector = 2;
constexpr int64_t kVectors = 3;
constexpr double kEpsilon = 1e-3;

using Doubles = std::vector<double>;

Doubles random_doubles(int64_t count, uint64_t sample) {
  const std::vector<float> values = random_values(count, sample);
  return {values.begin(), values.end()};
}

std::vector<float> floats(const Doubles& values) {
  return {values.begin(), values.end()};
}

/// A call's inputs in double, and the formula of the header: the oracle.
struct Problem {
  bool centres = true;
  Doubles x = random_doubles(kRows * kWidth, 1);
  Doubles branch = random_doubles(kRows * kWidth, 2);
  Doubles gate = random_doubles(kVectors * kWidth, 3);
  Doubles scale = random_doubles(kVectors * kWidth, 4);
  Doubles shift = random_doubles(kVectors * kWidth, 5);
  // The gradients of x_out and h: the loss is the sum of their products.
  Doubles dx_out = random_doubles(kRows * kWidth, 6);
  Doubles dh = random_doubles(kRows * kWidth, 7);

  struct Result {
    Doubles x_out, h, mean, rstd;
  };

  [[nodiscard]] Result forward() const {
    Result result;
    for (int64_t row = 0; row < kRows; ++row) {
      Doubles v;
      double mean = 0.0, variance = 0.0;
      for (int64_t c = 0; c < kWidth; ++c) {
        const auto i = static_cast<size_t>(row * kWidth + c);
        const auto k = static_cast<size_t>(row / kRowsPerVector * kWidth + c);
        v.push_back(x[i] + gate[k] * branch[i]);
        mean += centres ? v.back() / kWidth : 0.0;
      }
      for (const double value : v) {
        variance += (value - mean) * (value - mean) / kWidth;
      }
      const double rstd = 1.0 / std::sqrt(variance + kEpsilon);
      for (int64_t c = 0; c < kWidth; ++c) {
        const auto k = static_cast<size_t>(row / kRowsPerVector * kWidth + c);
        const double value = v[static_cast<size_t>(c)];
        result.x_out.push_back(value);
        result.h.push_back((value - mean) * rstd * (1.0 + scale[k]) + shift[k]);
      }
      result.mean.push_back(mean);
      result.rstd.push_back(rstd);
    }
    return result;
  }

  [[nodiscard]] double loss() const {
    const Result result = forward();
    double sum = 0.0;
    for (size_t i = 0; i < result.h.size(); ++i) {
      sum += dx_out[i] * result.x_out[i] + dh[i] * result.h[i];
    }
    return sum;
  }

  /// The loss's derivatives by the elements of one of the inputs.
  [[nodiscard]] std::vector<float> differences(Doubles Problem::*input) const {
    constexpr double kStep = 1e-5;
    std::vector<float> result;
    for (size_t i = 0; i < (this->*input).size(); ++i) {
      Problem moved = *this;
      (moved.*input)[i] += kStep;
      const double above = moved.loss();
      (moved.*input)[i] -= 2.0 * kStep;
      result.push_back(static_cast<float>((above - moved.loss()) / (2.0 * kStep)));
    }
    return result;
  }
};

constexpr double kMagnitude = 20.0;  // of sums of a few products; finite differences lose digits

class ModulatedNormTest : public testing::TestWithParam<bool> {};

TEST_P(ModulatedNormTest, ForwardIsTheFormula) {
  const Problem problem{.centres = GetParam()};
  const Problem::Result want = problem.forward();
  const std::vector<float> x = floats(problem.x), branch = floats(problem.branch);
  const std::vector<float> gate = floats(problem.gate), scale = floats(problem.scale);
  const std::vector<float> shift = floats(problem.shift);
  std::vector<float> x_out(x.size()), h(x.size()), mean(kRows), rstd(kRows);
  ResidualNormForward call;
  call.rows = kRows;
  call.width = kWidth;
  call.rows_of_vectors = {kRowsPerVector, kRowsPerVector};
  call.epsilon = static_cast<float>(kEpsilon);
  call.centres = problem.centres;
  call.type = call.h_type = DType::kF32;
  call.x = x.data();
  call.branch = branch.data();
  call.gate = {gate.data(), kWidth, nullptr};
  call.scale = {scale.data(), kWidth, nullptr};
  call.shift = {shift.data(), kWidth, nullptr};
  call.x_out = x_out.data();
  call.h = h.data();
  call.mean = mean.data();
  call.rstd = rstd.data();
  residual_norm_forward(call);
  expect_close(x_out, floats(want.x_out), DType::kF32, 1.0, "x_out");
  expect_close(h, floats(want.h), DType::kF32, 1.0, "h");
  expect_close(mean, floats(want.mean), DType::kF32, 1.0, "mean");
  expect_close(rstd, floats(want.rstd), DType::kF32, 1.0, "rstd");
}

TEST_P(ModulatedNormTest, BackwardIsTheDerivative) {
  const Problem problem{.centres = GetParam()};
  const Problem::Result forward = problem.forward();
  const std::vector<float> x_out = floats(forward.x_out), mean = floats(forward.mean);
  const std::vector<float> rstd = floats(forward.rstd), branch = floats(problem.branch);
  const std::vector<float> gate = floats(problem.gate), scale = floats(problem.scale);
  const std::vector<float> dh = floats(problem.dh), dx_out = floats(problem.dx_out);
  std::vector<float> dx(x_out.size()), dbranch(x_out.size());
  constexpr int64_t kStride = 3 * kWidth;  // the three gradients side by side
  std::vector<float> dvectors(kVectors * kStride), dbranch_sum(kVectors * kWidth);
  ResidualNormBackward call;
  call.rows = kRows;
  call.width = kWidth;
  call.rows_of_vectors = {kRowsPerVector, kRowsPerVector};
  call.type = call.dh_type = DType::kF32;
  call.centres = problem.centres;
  call.dh = dh.data();
  call.dx_out = dx_out.data();
  call.x_out = x_out.data();
  call.mean = mean.data();
  call.rstd = rstd.data();
  call.branch = branch.data();
  call.gate = {gate.data(), kWidth, nullptr};
  call.scale = {scale.data(), kWidth, nullptr};
  call.dx = dx.data();
  call.dbranch = dbranch.data();
  call.dshift = dvectors.data();
  call.dscale = dvectors.data() + kWidth;
  call.dgate = dvectors.data() + 2 * kWidth;
  call.dvector_stride = kStride;
  call.dbranch_sum = dbranch_sum.data();
  residual_norm_backward(call);

  const std::vector<float> want_dbranch = problem.differences(&Problem::branch);
  expect_close(dx, problem.differences(&Problem::x), DType::kF32, kMagnitude, "dx");
  expect_close(dbranch, want_dbranch, DType::kF32, kMagnitude, "dbranch");
  const auto part = [&](int64_t which) {
    std::vector<float> values;
    for (int64_t v = 0; v < kVectors; ++v) {
      const auto first = dvectors.begin() + v * kStride + which * kWidth;
      values.insert(values.end(), first, first + kWidth);
    }
    return values;
  };
  expect_close(part(0), problem.differences(&Problem::shift), DType::kF32, kMagnitude, "dshift");
  expect_close(part(1), problem.differences(&Problem::scale), DType::kF32, kMagnitude, "dscale");
  expect_close(part(2), problem.differences(&Problem::gate), DType::kF32, kMagnitude, "dgate");
  std::vector<float> sums(kVectors * kWidth);
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    sums[static_cast<size_t>(i / kWidth / kRowsPerVector * kWidth + i % kWidth)] +=
        want_dbranch[static_cast<size_t>(i)];
  }
  expect_close(dbranch_sum, sums, DType::kF32, kMagnitude, "dbranch_sum");
}

INSTANTIATE_TEST_SUITE_P(Norms, ModulatedNormTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "LayerNorm" : "RmsNorm"; });

TEST(ModulatedNormRowTest, PlainLayerNormOfAKnownRow) {
  // Mean 5 and variance 4; without scale and shift, and without a residual.
  const std::vector<float> x = {2.0F, 4.0F, 4.0F, 4.0F, 5.0F, 5.0F, 7.0F, 9.0F};
  std::vector<float> h(8), mean(1), rstd(1);
  ResidualNormForward call;
  call.rows = 1;
  call.width = 8;
  call.epsilon = 0.0F;
  call.type = call.h_type = DType::kF32;
  call.x = x.data();
  call.h = h.data();
  call.mean = mean.data();
  call.rstd = rstd.data();
  residual_norm_forward(call);
  EXPECT_EQ(mean[0], 5.0F);
  EXPECT_EQ(rstd[0], 0.5F);
  EXPECT_EQ(h, (std::vector<float>{-1.5F, -0.5F, -0.5F, -0.5F, 0.0F, 0.0F, 1.0F, 2.0F}));
}

/// The residual alone, of two columns: x + gate * branch, and the gradients of branch and gate.
struct ResidualAlone {
  std::vector<float> x_out, dx, dbranch, dgate;

  ResidualAlone(const VectorRows& rows, const std::vector<float>& x,
                const std::vector<float>& branch, const std::vector<float>& gate,
                const std::vector<float>& dx_out)
      : x_out(x.size()), dx(x.size()), dbranch(x.size()), dgate(gate.size()) {
    ResidualNormForward forward;
    forward.rows = std::ssize(x) / 2;
    forward.width = 2;
    forward.rows_of_vectors = rows;
    forward.type = forward.h_type = DType::kF32;
    forward.x = x.data();
    forward.branch = branch.data();
    forward.gate = {gate.data(), 2, nullptr};
    forward.x_out = x_out.data();
    residual_norm_forward(forward);
    ResidualNormBackward backward;
    backward.rows = forward.rows;
    backward.width = 2;
    backward.rows_of_vectors = rows;
    backward.type = backward.dh_type = DType::kF32;
    backward.dx_out = dx_out.data();
    backward.branch = branch.data();
    backward.gate = forward.gate;
    backward.dx = dx.data();
    backward.dbranch = dbranch.data();
    backward.dgate = dgate.data();
    backward.dvector_stride = 2;
    residual_norm_backward(backward);
  }
};

TEST(ModulatedNormRowTest, TwoPartsOfASampleHaveVectorsInTurn) {
  // Two samples of two rows and one, and a third that has one row alone.
  const VectorRows rows{.even = 2, .odd = 1};
  EXPECT_EQ(rows.count(7), 5);
  const std::vector<float> ones(14, 1.0F);
  const ResidualAlone got(rows, ones, ones, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5}, ones);
  EXPECT_EQ(got.x_out, (std::vector<float>{2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5, 6, 6}));
  EXPECT_EQ(got.dgate, (std::vector<float>{2, 2, 1, 1, 2, 2, 1, 1, 1, 1}));
}

TEST(ModulatedNormRowTest, TablesAreAddedAndStrideZeroIsOneVectorForAll) {
  const std::vector<float> x = {-1.0F, 1.0F, 3.0F, 5.0F};  // xhat: -1, 1 in both rows
  const std::vector<float> scale = {1.0F, 2.0F}, shift = {10.0F, 20.0F}, table = {0.5F, -0.5F};
  std::vector<float> h(4);
  ResidualNormForward call;
  call.rows = 2;
  call.width = 2;
  call.epsilon = 0.0F;
  call.type = call.h_type = DType::kF32;
  call.x = x.data();
  call.scale = {scale.data(), 0, table.data()};
  call.shift = {shift.data(), 0, table.data()};
  call.h = h.data();
  residual_norm_forward(call);
  EXPECT_EQ(h, (std::vector<float>{8.0F, 22.0F, 8.0F, 22.0F}));
}

TEST(ModulatedNormRowTest, HIsMadeOfTheUnroundedResidual) {
  // 256 + 1 is not a bf16 number (256 is the nearest even), its deviation from the mean is.
  const std::vector<uint8_t> x = encode({256.0F, 255.0F}, DType::kBF16);
  const std::vector<uint8_t> branch = encode({1.0F, 0.0F}, DType::kBF16);
  const std::vector<float> gate = {1.0F, 1.0F};
  std::vector<uint8_t> x_out(4);
  std::vector<float> h(2);
  ResidualNormForward call;
  call.rows = 1;
  call.width = 2;
  call.epsilon = 3.0F;
  call.h_type = DType::kF32;
  call.x = x.data();
  call.branch = branch.data();
  call.gate = {gate.data(), 2, nullptr};
  call.x_out = x_out.data();
  call.h = h.data();
  residual_norm_forward(call);
  EXPECT_EQ(decode(x_out, DType::kBF16), (std::vector<float>{256.0F, 255.0F}));
  EXPECT_EQ(h, (std::vector<float>{0.5F, -0.5F}));
}

TEST(ModulatedNormRowTest, WithoutANormHIsTheRoundedResidual) {
  const std::vector<uint8_t> x = encode({256.0F, -3.0F}, DType::kBF16);
  const std::vector<uint8_t> branch = encode({1.0F, 0.5F}, DType::kBF16);
  const std::vector<float> gate = {1.0F, 2.0F};
  const float scale = 0.5F;
  std::vector<uint8_t> x_out(4), quantised(2);
  std::vector<float> h(2);
  float amax = 0.0F;
  ResidualNormForward call;
  call.rows = 1;
  call.width = 2;
  call.has_norm = false;
  call.h_type = DType::kF32;
  call.x = x.data();
  call.branch = branch.data();
  call.gate = {gate.data(), 2, nullptr};
  call.x_out = x_out.data();
  call.h = h.data();
  call.h_fp8 = {DType::kF8E4M3, quantised.data(), nullptr, &scale, &amax};
  residual_norm_forward(call);
  EXPECT_EQ(decode(x_out, DType::kBF16), (std::vector<float>{256.0F, -2.0F}));
  EXPECT_EQ(h, (std::vector<float>{256.0F, -2.0F}));
  EXPECT_EQ(decode(quantised, DType::kF8E4M3), (std::vector<float>{128.0F, -1.0F}));
  EXPECT_EQ(amax, 256.0F);
}

TEST(ModulatedNormRowTest, TheResidualAloneAndItsBackward) {
  const std::vector<float> dx_out = {10.0F, 20.0F};
  const ResidualAlone got({}, {1.0F, 2.0F}, {3.0F, 4.0F}, {0.5F, -1.0F}, dx_out);
  EXPECT_EQ(got.x_out, (std::vector<float>{2.5F, -2.0F}));
  EXPECT_EQ(got.dx, dx_out);
  EXPECT_EQ(got.dbranch, (std::vector<float>{5.0F, -20.0F}));
  EXPECT_EQ(got.dgate, (std::vector<float>{30.0F, 80.0F}));
}

TEST(ModulatedNormRowTest, QuantisedCopiesAreOfH) {
  const std::vector<float> x = {-1.0F, 1.0F, 1.0F, -1.0F};  // h = xhat = x
  std::vector<uint8_t> data(4), transposed(2 * 16);
  const float scale = 256.0F;
  float amax = 0.5F;
  ResidualNormForward call;
  call.rows = 2;
  call.width = 2;
  call.epsilon = 0.0F;
  call.type = DType::kF32;
  call.x = x.data();
  call.h_fp8 = {DType::kF8E4M3, data.data(), transposed.data(), &scale, &amax};
  residual_norm_forward(call);
  EXPECT_EQ(decode(data, DType::kF8E4M3), (std::vector<float>{-256.0F, 256.0F, 256.0F, -256.0F}));
  for (size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(transposed[16 * (i % 2) + i / 2], data[i]);
  }
  EXPECT_EQ(amax, 1.0F);
}

}  // namespace modulated_norm_test
}  // namespace kinora::kernels
