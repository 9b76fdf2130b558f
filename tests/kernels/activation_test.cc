#include "kinora/kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace activation_test {

constexpr Activation kFunctions[] = {Activation::kGeluTanh, Activation::kSilu};

std::vector<float> forward(Activation function, const std::vector<float>& u) {
  std::vector<float> g(u.size());
  ActivationForward call;
  call.function = function;
  call.rows = 1;
  call.width = static_cast<int64_t>(u.size());
  call.type = DType::kF32;
  call.u = u.data();
  call.g = g.data();
  activation_forward(call);
  return g;
}

TEST(ActivationTest, EqualsTorch) {
  // torch.nn.functional.gelu(x, approximate="tanh") and silu(x) in float64.
  const std::vector<float> u = {-10.0F, -3.0F, -1.0F, -0.5F, 0.0F, 0.25F, 1.0F, 2.0F, 5.0F};
  const double gelu[] = {-0.0,
                         -0.0036373920817729943,
                         -0.15880800939172324,
                         -0.15428599017485606,
                         0.0,
                         0.149675350701685,
                         0.8411919906082768,
                         1.954597694087775,
                         4.999999770820381};
  const double silu[] = {
      -0.0004539786870243439, -0.14227761953270035, -0.2689414213699951, -0.1887703343990727, 0.0,
      0.14054412522144952,    0.7310585786300049,   1.7615941559557646,  4.966535745378576};
  const std::vector<float> got_gelu = forward(Activation::kGeluTanh, u);
  const std::vector<float> got_silu = forward(Activation::kSilu, u);
  for (size_t i = 0; i < u.size(); ++i) {
    EXPECT_NEAR(got_gelu[i], gelu[i], 1e-7 * std::abs(u[i])) << u[i];
    EXPECT_NEAR(got_silu[i], silu[i], 1e-7 * std::abs(u[i])) << u[i];
  }
}

TEST(ActivationTest, GatedIsTheActivationTimesTheGate) {
  const std::vector<float> u = {-1.0F, 2.0F, 0.25F, -0.5F};
  const std::vector<float> v = {3.0F, -0.5F, 0.0F, 1.5F};
  for (const Activation function : {Activation::kGeluTanh, Activation::kSilu}) {
    const std::vector<float> f = forward(function, u);
    // Rows of two; the result in the place of u.
    std::vector<float> uv = {u[0], u[1], v[0], v[1], u[2], u[3], v[2], v[3]};
    gated_activation({.function = function,
                      .rows = 2,
                      .width = 2,
                      .type = DType::kF32,
                      .uv = uv.data(),
                      .g = uv.data(),
                      .g_stride = 4});
    for (size_t i = 0; i < u.size(); ++i) {
      const size_t place = i / 2 * 4 + i % 2;
      EXPECT_NEAR(uv[place], f[i] * v[i], 1e-6) << i;
      EXPECT_EQ(uv[place + 2], v[i]) << i;
    }
  }
}

TEST(ActivationTest, GradientsEqualFiniteDifferences) {
  for (const Activation function : kFunctions) {
    for (double u = -6.0; u <= 6.0; u += 0.37) {
      // The function in double, by its formula.
      const auto f = [&](double x) {
        const double s = function == Activation::kSilu
                             ? x
                             : 2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        return x / (1.0 + std::exp(-s));
      };
      const auto x = static_cast<float>(u);
      const float dg = 3.0F;
      float du = 0.0F;
      ActivationBackward call;
      call.function = function;
      call.rows = 1;
      call.width = 1;
      call.type = DType::kF32;
      call.dg = &dg;
      call.u = &x;
      call.du = &du;
      activation_backward(call);
      constexpr double kStep = 1e-5;
      const double expected = 3.0 * (f(x + kStep) - f(x - kStep)) / (2.0 * kStep);
      EXPECT_NEAR(du, expected, 1e-6);
    }
  }
}

TEST(ActivationTest, BackwardGivesTheBiasGradientAndCopies) {
  const int64_t rows = 5;
  const int64_t width = 3;
  const std::vector<float> u = random_values(rows * width, 1);
  const std::vector<float> dg = random_values(rows * width, 2);
  std::vector<float> du(u.size());
  std::vector<uint8_t> transposed(static_cast<size_t>(width * transposed_pitch(rows)));
  std::vector<float> bias_grad = {1.0F, 2.0F, 3.0F};
  float amax = 0.0F;
  ActivationBackward call;
  call.rows = rows;
  call.width = width;
  call.type = DType::kF32;
  call.dg = dg.data();
  call.u = u.data();
  call.du = du.data();
  call.du_fp8.transposed = transposed.data();
  call.du_fp8.amax = &amax;
  call.bias_grad = bias_grad.data();
  activation_backward(call);
  float largest = 0.0F;
  for (int64_t column = 0; column < width; ++column) {
    double sum = static_cast<double>(column + 1);
    for (int64_t row = 0; row < rows; ++row) {
      const float value = du[static_cast<size_t>(row * width + column)];
      sum += value;
      largest = std::max(largest, std::abs(value));
      EXPECT_EQ(transposed[static_cast<size_t>(column * transposed_pitch(rows) + row)],
                float_to_fp8(value, DType::kF8E4M3));
    }
    EXPECT_NEAR(bias_grad[static_cast<size_t>(column)], sum, 1e-6);
  }
  EXPECT_EQ(amax, largest);
}

TEST(ActivationTest, HugeValuesStayFiniteAndNanPropagates) {
  for (const Activation function : kFunctions) {
    const std::vector<float> g = forward(function, {1e25F, -1e25F, NAN, INFINITY});
    EXPECT_EQ(g[0], 1e25F);
    EXPECT_EQ(g[1], 0.0F);
    EXPECT_TRUE(std::isnan(g[2]));
    EXPECT_EQ(g[3], INFINITY);
  }
}

}  // namespace activation_test
}  // namespace kinora::kernels
