#include "kinora/ops/fp8_linears.h"

#include <gtest/gtest.h>

#include <tuple>

namespace kinora::ops {
namespace fp8_linears_test {

using kernels::MatmulProblem;
using kernels::Scaling;

constexpr LinearShape kShape{.rows = 48, .in = 16, .out = 32};

std::tuple<int64_t, int64_t, int64_t> sizes_of(const MatmulProblem& problem) {
  return {problem.m, problem.n, problem.k};
}

TEST(Fp8LinearsTest, ProductsAddUpAlongRowsOfBothCopies) {
  for (const Fp8Scaling scaling :
       {Fp8Scaling::kDelayed, Fp8Scaling::kCurrent, Fp8Scaling::kBlock}) {
    const Fp8Problems problems = fp8_problems(scaling, kShape, DType::kF16);
    EXPECT_EQ(sizes_of(problems.forward), std::tuple(48, 32, 16));
    EXPECT_EQ(sizes_of(problems.input_grad), std::tuple(48, 16, 32));
    EXPECT_EQ(sizes_of(problems.weight_grad), std::tuple(32, 16, 48));
    EXPECT_EQ(problems.forward.d_type, DType::kF16);
    EXPECT_EQ(problems.input_grad.d_type, DType::kF16);
    EXPECT_EQ(problems.weight_grad.d_type, DType::kF32);
    EXPECT_FALSE(problems.input_grad.fast_accumulation) << "for forward passes only";
    EXPECT_FALSE(problems.weight_grad.fast_accumulation);
    for (const MatmulProblem& problem :
         {problems.forward, problems.input_grad, problems.weight_grad}) {
      EXPECT_FALSE(problem.transpose_a);
      EXPECT_TRUE(problem.transpose_b);
    }
  }
}

TEST(Fp8LinearsTest, GradientsAreE5M2UnlessBlocksHaveTheirScales) {
  for (const auto& [scaling, type] : {std::pair(Fp8Scaling::kDelayed, DType::kF8E5M2),
                                      std::pair(Fp8Scaling::kCurrent, DType::kF8E5M2),
                                      std::pair(Fp8Scaling::kBlock, DType::kF8E4M3)}) {
    const Fp8Problems problems = fp8_problems(scaling, kShape, DType::kBF16);
    EXPECT_EQ(problems.forward.a_type, DType::kF8E4M3);
    for (const MatmulProblem& problem : {problems.input_grad, problems.weight_grad}) {
      EXPECT_EQ(problem.a_type, type);
      EXPECT_EQ(problem.b_type, DType::kF8E4M3);
    }
  }
}

TEST(Fp8LinearsTest, OnlyWeightsHaveSquareBlocks) {
  const Fp8Problems blocks = fp8_problems(Fp8Scaling::kBlock, kShape, DType::kBF16);
  EXPECT_EQ(blocks.forward.a_scaling, Scaling::kRow128);
  EXPECT_EQ(blocks.forward.b_scaling, Scaling::kBlock128);
  EXPECT_EQ(blocks.input_grad.a_scaling, Scaling::kRow128);
  EXPECT_EQ(blocks.input_grad.b_scaling, Scaling::kBlock128);
  EXPECT_EQ(blocks.weight_grad.a_scaling, Scaling::kRow128);
  EXPECT_EQ(blocks.weight_grad.b_scaling, Scaling::kRow128);
  const Fp8Problems tensors = fp8_problems(Fp8Scaling::kCurrent, kShape, DType::kBF16);
  for (const MatmulProblem& problem : {tensors.forward, tensors.input_grad, tensors.weight_grad}) {
    EXPECT_EQ(problem.a_scaling, Scaling::kTensor);
    EXPECT_EQ(problem.b_scaling, Scaling::kTensor);
  }
}

}  // namespace fp8_linears_test
}  // namespace kinora::ops
