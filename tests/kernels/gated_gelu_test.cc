#include "kinora/kernels/gated_gelu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gated_gelu_test {

// GELU(1) = 0.8413447 and GELU(-2) = -0.0455003, of tables of the normal distribution.
TEST(GatedGeluTest, GatesAreThoseOfTheNormalDistribution) {
  const std::vector<float> uv = {3.0F, -2.0F, 1.0F, -2.0F, 5.0F, 7.0F, 0.0F, 30.0F};
  const std::vector<float> want = {3.0F * 0.8413447F, 2.0F * 0.0455003F, 0.0F, 210.0F};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<uint8_t> out = encode(std::vector<float>(4), type);
    gated_gelu_forward(
        {.rows = 2, .width = 2, .type = type, .uv = encode(uv, type).data(), .g = out.data()});
    const std::vector<float> got = decode(out, type);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], (type == DType::kF32 ? 1e-6F : 4e-3F) * (1.0F + want[i]));
    }
  }
}

TEST(GatedGeluTest, BackwardIsTheDerivative) {
  constexpr double kStep = 1e-2;
  const std::vector<float> uv = {0.7F, -1.3F, 0.4F, -0.9F};  // a row of two u, two v
  const std::vector<float> dg = {1.5F, -0.25F};
  const auto loss = [&](const std::vector<float>& values) {
    std::vector<float> g(2);
    gated_gelu_forward(
        {.rows = 1, .width = 2, .type = DType::kF32, .uv = values.data(), .g = g.data()});
    return static_cast<double>(g[0]) * dg[0] + static_cast<double>(g[1]) * dg[1];
  };
  std::vector<float> duv(4);
  gated_gelu_backward({.rows = 1,
                       .width = 2,
                       .type = DType::kF32,
                       .uv = uv.data(),
                       .dg = dg.data(),
                       .duv = duv.data()});
  for (size_t i = 0; i < uv.size(); ++i) {
    std::vector<float> above = uv;
    std::vector<float> below = uv;
    above[i] += static_cast<float>(kStep);
    below[i] -= static_cast<float>(kStep);
    EXPECT_NEAR(duv[i], (loss(above) - loss(below)) / (2 * kStep), 1e-4) << i;
  }
}

}  // namespace gated_gelu_test
}  // namespace kinora::kernels
