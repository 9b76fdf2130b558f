// The 8-bit copies of weights, by the CPU specifications of the launchers (host_launch.cc).
#include "kinora/ops/fp8.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

namespace kinora::ops {
namespace fp8_test {

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;

/// A weight as a file in 8-bit floats has it: values [48, 32] of E4M3, and their scale.
struct Published {
  at::Tensor values = (0.05 * at::randn({48, 32})).to(kE4M3);
  double scale = 1.0;

  [[nodiscard]] at::Tensor read_as(at::ScalarType type) const {
    return (values.to(at::kFloat) * scale).to(type);
  }
};

/// Its largest value is the largest of E4M3, as files with scales have it.
Published published_with_scale() {
  const at::Tensor weight = 0.05 * at::randn({48, 32});
  const double scale = weight.abs().max().item<double>() / kernels::kLargestE4M3;
  return {.values = (weight / scale).to(kE4M3), .scale = scale};
}

/// Of a weight of `values`, alone in its block. `takes_turns`: as one at the host.
Operand quantised(const at::Tensor& values, Fp8Use use, bool takes_turns = false,
                  const at::Tensor& gradient = {}) {
  Fp8 fp8(1, at::kCPU, Fp8Scaling::kCurrent, use);
  if (takes_turns) {
    fp8.frozen_take_turns();
  }
  LinearWeights linear;
  linear.weight = values;
  linear.weight_grad = gradient;
  linear.number = 0;
  for (int pass = 0; pass < 2; ++pass) {
    fp8.begin_step();
    fp8.know({linear});
    fp8.begin_block({linear}, /*is_forward=*/true, /*are_new=*/true);
  }
  return fp8.weight(0);
}

at::Tensor codes_of(const Operand& weight) {
  return weight.fp8.view(kE4M3);
}

double largest_code(const Operand& weight) {
  return codes_of(weight).to(at::kFloat).abs().max().item<double>();
}

at::Tensor values_of(const Operand& weight) {
  return codes_of(weight).to(at::kFloat) * weight.factors;
}

/// In sampling, in training over frozen weights, and where these take turns.
template <typename Check>
void for_each_frozen(const Check& check) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Fp8Use use : {Fp8Use::kSampling, Fp8Use::kTraining}) {
      for (const bool takes_turns : {false, true}) {
        SCOPED_TRACE(testing::Message() << type << ", use " << static_cast<int>(use)
                                        << (takes_turns ? ", taking turns" : ""));
        check(type, [&](const at::Tensor& values) { return quantised(values, use, takes_turns); });
      }
    }
  }
}

TEST(Fp8WeightsTest, OfAFileWithoutScalesKeepAllDigits) {
  at::manual_seed(1);
  const Published published;
  for_each_frozen([&](at::ScalarType type, const auto& quantise) {
    const at::Tensor weight = published.read_as(type);
    EXPECT_TRUE(at::equal(values_of(quantise(weight)), weight.to(at::kFloat)));
  });
}

TEST(Fp8WeightsTest, OfAFileWithScalesAreThatFilesAgain) {
  at::manual_seed(1);
  const Published published = published_with_scale();
  for_each_frozen([&](at::ScalarType type, const auto& quantise) {
    const Operand weight = quantise(published.read_as(type));
    EXPECT_TRUE(at::equal(codes_of(weight).to(at::kFloat), published.values.to(at::kFloat)));
  });
}

TEST(Fp8WeightsTest, OthersUseTheWholeRange) {
  at::manual_seed(1);
  const at::Tensor weight = 0.05 * at::randn({48, 32});
  for_each_frozen([&](at::ScalarType type, const auto& quantise) {
    EXPECT_EQ(largest_code(quantise(weight.to(type))), kernels::kLargestE4M3);
  });
}

// Their digits change with each step.
TEST(Fp8WeightsTest, TrainedOnesUseTheWholeRangeWhateverTheirDigits) {
  at::manual_seed(1);
  const at::Tensor weight = Published().read_as(at::kBFloat16);
  const Operand got =
      quantised(weight, Fp8Use::kTraining, false, at::zeros({48, 32}, at::dtype(at::kFloat)));
  EXPECT_EQ(largest_code(got), kernels::kLargestE4M3);
}

}  // namespace fp8_test
}  // namespace kinora::ops
