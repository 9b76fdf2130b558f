#include "kinora/ops/attention.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kinora/core/error.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace attention_test {

struct Size {
  int64_t batch;
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
};

/// softmax(q k^T / sqrt(D)) v by loops in double (Vaswani et al. 2017, eq. 1).
at::Tensor naive(const at::Tensor& qkv, const Size& s) {
  const at::Tensor input = qkv.detach().to(at::kDouble).contiguous();
  const int64_t width = s.heads * s.head_dim;
  at::Tensor output = at::empty({s.batch, s.tokens, width}, at::kDouble);
  const double* in = input.const_data_ptr<double>();
  double* out = output.mutable_data_ptr<double>();
  const auto row = [&](int64_t b, int64_t n, int64_t which, int64_t h) {
    return in + ((b * s.tokens + n) * 3 + which) * width + h * s.head_dim;
  };
  std::vector<double> weights(static_cast<size_t>(s.tokens));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t n = 0; n < s.tokens; ++n) {
        double sum = 0.0;
        for (int64_t m = 0; m < s.tokens; ++m) {
          double score = 0.0;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            score += row(b, n, 0, h)[d] * row(b, m, 1, h)[d];
          }
          weights[static_cast<size_t>(m)] =
              std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
          sum += weights[static_cast<size_t>(m)];
        }
        for (int64_t d = 0; d < s.head_dim; ++d) {
          double value = 0.0;
          for (int64_t m = 0; m < s.tokens; ++m) {
            value += weights[static_cast<size_t>(m)] / sum * row(b, m, 2, h)[d];
          }
          out[(b * s.tokens + n) * width + h * s.head_dim + d] = value;
        }
      }
    }
  }
  return output;
}

class AttentionTest : public testing::TestWithParam<Size> {
 protected:
  [[nodiscard]] at::Tensor input(at::ScalarType type) const {
    const Size& s = GetParam();
    return normal({s.batch, s.tokens, 3 * s.heads * s.head_dim}, 1).to(type);
  }
};

TEST_P(AttentionTest, MatchesTheDefinition) {
  struct Type {
    at::ScalarType type;
    double tolerance;  // a few roundings of the output
  };
  for (const Type& t : {Type{at::kDouble, 1e-13}, Type{at::kFloat, 2e-6}, Type{at::kBFloat16, 1e-2},
                        Type{at::kHalf, 2e-3}}) {
    const at::Tensor qkv = input(t.type);
    const at::Tensor got = attention(qkv, GetParam().heads);
    EXPECT_EQ(got.scalar_type(), t.type);
    EXPECT_LT(relative_error(got, naive(qkv, GetParam())), t.tolerance) << t.type;
  }
}

TEST_P(AttentionTest, GradientMatchesFiniteDifferences) {
  const Size& s = GetParam();
  const at::Tensor qkv = input(at::kDouble).set_requires_grad(true);
  const at::Tensor weights = normal({s.batch, s.tokens, s.heads * s.head_dim}, 2, at::kDouble);
  const auto loss = [&](const at::Tensor& x) { return (attention(x, s.heads) * weights).sum(); };
  torch::autograd::backward({loss(qkv)}, {});
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor direction = normal(qkv.sizes().vec(), 10 + i, at::kDouble);
    const double expected = finite_difference(
        [&](const at::Tensor& x) { return (naive(x, s) * weights).sum(); }, qkv, direction);
    EXPECT_NEAR((qkv.grad() * direction).sum().item<double>(), expected,
                1e-7 * std::max(1.0, std::abs(expected)));
  }
}

// The fused kernel's gradient against the composed one's, which the test above has checked.
TEST_P(AttentionTest, GradientInFloatMatchesDouble) {
  const Size& s = GetParam();
  at::Tensor gradients[2];
  for (const bool exact : {false, true}) {
    const at::ScalarType type = exact ? at::kDouble : at::kFloat;
    const at::Tensor qkv = input(type).set_requires_grad(true);
    const at::Tensor weights = normal({s.batch, s.tokens, s.heads * s.head_dim}, 2, type);
    torch::autograd::backward({(attention(qkv, s.heads) * weights).sum()}, {});
    gradients[exact ? 1 : 0] = qkv.grad();
  }
  EXPECT_LT(relative_error(gradients[0], gradients[1]), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AttentionTest,
                         testing::Values(Size{1, 1, 1, 4}, Size{2, 7, 3, 72}, Size{1, 33, 2, 5},
                                         Size{3, 16, 4, 32}, Size{1, 65, 1, 64}),
                         [](const auto& info) {
                           const Size& s = info.param;
                           return "B" + std::to_string(s.batch) + "_N" + std::to_string(s.tokens) +
                                  "_H" + std::to_string(s.heads) + "_D" +
                                  std::to_string(s.head_dim);
                         });

TEST(AttentionErrorTest, WrongShapesAreNamed) {
  for (const at::Tensor& qkv : {normal({2, 3, 10}, 1), normal({3, 12}, 1)}) {
    try {
      (void)attention(qkv, 2);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kShape);
      EXPECT_NE(std::string(error.what()).find("3 * heads * D"), std::string::npos);
    }
  }
}

TEST(AttentionKernelTest, HasAName) {
  const at::Tensor qkv = normal({1, 16, 96}, 1).set_requires_grad(true);
  const std::string name = attention_kernel(qkv, 2);
  EXPECT_TRUE(name == "flash" || name == "math") << name;  // what the CPU has
}

}  // namespace attention_test
}  // namespace kinora::ops
