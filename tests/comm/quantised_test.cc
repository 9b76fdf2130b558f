// Collectives in 8 bits: their error, their bytes, and what they do to what is not finite.
#include "kinora/comm/quantised.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace quantised_test {

/// What `rank` brings: numbers of all sizes from 2^-20 to 1, in each block.
at::Tensor input_of(int64_t rank, int64_t count) {
  const at::Tensor i = at::arange(count, at::kDouble);
  const at::Tensor exponents = i.mul(7).add(rank).remainder(21).neg();
  return i.add(0.25)
      .mul(0.37 + 0.11 * static_cast<double>(rank))
      .sin()
      .mul(at::pow(2.0, exponents))
      .to(at::kFloat);
}

/// The largest magnitude of each element's block of 128 of a part: [count].
at::Tensor block_largest(const at::Tensor& part) {
  at::Tensor largest = at::empty_like(part);
  for (int64_t first = 0; first < part.numel(); first += 128) {
    const int64_t size = std::min<int64_t>(128, part.numel() - first);
    largest.narrow(0, first, size).fill_(part.narrow(0, first, size).abs().max().item<float>());
  }
  return largest;
}

/// The bound of quantised.h, and fp32's rounding of the scale and of the sum.
at::Tensor error_bound(const at::Tensor& part) {
  const at::Tensor magnitude = part.to(at::kDouble).abs();
  const at::Tensor smallest = block_largest(part).to(at::kDouble).mul(0x1p-10 / 448.0);
  return at::maximum(magnitude.div(16.0), smallest).add(magnitude.mul(0x1p-21));
}

/// By libtorch's own conversion: what `part` becomes on its way.
at::Tensor travelled(const at::Tensor& part) {
  const at::Tensor largest = block_largest(part.to(at::kFloat));
  const at::Tensor scale = at::full_like(largest, 448.0).div(largest);
  const at::Tensor numbers = part.to(at::kFloat).mul(scale).to(at::kFloat8_e4m3fn);
  return numbers.to(at::kFloat).mul(scale.reciprocal());
}

void check_reduce_scatter(const Group& world, int64_t count, Reduction reduction) {
  const int64_t size = world.size();
  at::Tensor exact = at::zeros({count}, at::kDouble);
  at::Tensor bound = at::zeros({count}, at::kDouble);
  for (int64_t rank = 0; rank < size; ++rank) {
    const at::Tensor part =
        input_of(rank, size * count).narrow(0, world.rank() * count, count).clone();
    exact.add_(part);
    bound.add_(error_bound(part));
  }
  if (reduction == Reduction::kMean) {
    exact.div_(size);
    bound.div_(size);
  }
  const at::Tensor output = at::full({count}, 99, at::kFloat);
  reduce_scatter_fp8(world, output, input_of(world.rank(), size * count), reduction);
  const at::Tensor used = output.to(at::kDouble).sub(exact).abs().div(bound).max();
  EXPECT_LE(used.item<double>(), 1.0);
  if (count > 100) {
    EXPECT_GE(used.item<double>(), 0.25) << "the bound says something";
  }
}

class QuantisedRanksTest : public testing::TestWithParam<int64_t> {};

TEST_P(QuantisedRanksTest, SumsKeepTheErrorBound) {
  run_on_ranks(GetParam(), [](const Group& world) {
    for (const int64_t count : {1, 100, 128, 384, 2048, 5000}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        SCOPED_TRACE(count);
        check_reduce_scatter(world, count, reduction);
      }
    }
  });
}

TEST_P(QuantisedRanksTest, AllRanksGatherTheSameValues) {
  run_on_ranks(GetParam(), [](const Group& world) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t count : {1, 100, 128, 2048, 5000}) {
        SCOPED_TRACE(std::string(at::toString(type)) + ", " + std::to_string(count));
        const at::Tensor output = at::full({world.size(), count}, 99, type);
        output[world.rank()].copy_(input_of(world.rank(), count));
        all_gather_fp8(world, output, output[world.rank()]);
        for (int64_t rank = 0; rank < world.size(); ++rank) {
          const at::Tensor part = input_of(rank, count).to(type);
          EXPECT_TRUE(at::equal(output[rank], travelled(part).to(type))) << "of rank " << rank;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, QuantisedRanksTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

TEST(QuantisedTest, AQuarterOfTheBytesTravels) {
  run_on_ranks(2, [](const Group& world) {
    const at::Tensor whole = input_of(world.rank(), 8192);
    const at::Tensor part = at::empty({4096}, at::kFloat);
    reduce_scatter_fp8(world, part, whole);
    // A byte an element, and four for 128 of them; plain, it would be four an element.
    EXPECT_EQ(world.traffic(Operation::kAllToAll).calls, 2);
    EXPECT_EQ(world.traffic(Operation::kAllToAll).bytes, 8192 + 8192 / 128 * 4);
    all_gather_fp8(world, whole, part);
    EXPECT_EQ(world.traffic(Operation::kAllGather).calls, 2);
    EXPECT_EQ(world.traffic(Operation::kAllGather).bytes, 8192 + 8192 / 128 * 4);
    EXPECT_EQ(world.traffic(Operation::kReduceScatter).calls, 0);
  });
}

TEST(QuantisedTest, WhatIsNotFiniteArrivesAsNan) {
  run_on_ranks(2, [](const Group& world) {
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const at::Tensor whole = at::full({2, 512}, 1, at::kFloat);
      if (world.rank() == 1) {
        whole[0][130] = value;  // block 1 of rank 0's part
      }
      const at::Tensor part = at::empty({512}, at::kFloat);
      reduce_scatter_fp8(world, part, whole);
      const at::Tensor is_nan = part.isnan();
      EXPECT_EQ(is_nan.sum().item<int64_t>(), world.rank() == 0 ? 128 : 0);
      EXPECT_EQ(is_nan.narrow(0, 128, 128).sum().item<int64_t>(), world.rank() == 0 ? 128 : 0);
    }
  });
}

TEST(QuantisedTest, OneRankLosesNothing) {
  const at::Tensor input = input_of(0, 300);
  const at::Tensor output = at::empty({300}, at::kFloat);
  reduce_scatter_fp8(Group(), output, input);
  EXPECT_TRUE(at::equal(output, input));
  output.zero_();
  all_gather_fp8(Group(), output, input);
  EXPECT_TRUE(at::equal(output, input));
}

TEST(QuantisedTest, WrongArgumentsAreRefused) {
  const at::Tensor floats = at::empty({4}, at::kFloat);
  const auto error = [](ErrorKind kind, const at::Tensor& output, const at::Tensor& input,
                        Reduction reduction) {
    return error_of(kind, [&] {
      reduce_scatter_fp8(Group(), output, input, reduction);
      return 0;
    });
  };
  EXPECT_NE(
      error(ErrorKind::kShape, at::empty({4}, at::kLong), floats, Reduction::kSum).find("got Long"),
      std::string::npos);
  EXPECT_NE(
      error(ErrorKind::kShape, at::empty({3}, at::kFloat), floats, Reduction::kSum).find("got 4"),
      std::string::npos);
  EXPECT_NE(error(ErrorKind::kConfig, floats, floats, Reduction::kMax).find("maximum"),
            std::string::npos);
}

}  // namespace quantised_test
}  // namespace kinora::comm
