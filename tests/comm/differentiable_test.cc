// Collectives with gradients against what one process computes.
#include "kinora/comm/differentiable.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace differentiable_test {

/// Values of which no two are equal, so that no place can stand for another.
at::Tensor counted(at::IntArrayRef shape, double first) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return (at::arange(count, at::kDouble) + first).to(at::kFloat).view(shape);
}

class DifferentiableTest : public testing::TestWithParam<int64_t> {};

// Whole [W a, W b, 3]: ranks hold parts of dim `joined` first, parts of dim `split` after it.
TEST_P(DifferentiableTest, AllToAllChangesTheDividedDimAndBackwardChangesItBack) {
  run_on_ranks(GetParam(), [](const Group& world) {
    const int64_t size = world.size();
    for (const auto& [split, joined] : {std::pair{0, 1}, std::pair{1, 0}}) {
      const at::Tensor whole = counted({2 * size, 3 * size, 3}, 1.0);
      const auto part = [&](const at::Tensor& of, int64_t dim) {
        const int64_t length = of.size(dim) / size;
        return of.narrow(dim, world.rank() * length, length);
      };
      const at::Tensor x = part(whole, joined).detach().clone().requires_grad_();
      const at::Tensor y = all_to_all(world, x, split, joined);
      EXPECT_TRUE(at::equal(y.detach(), part(whole, split)));
      const at::Tensor weight = whole.square();
      (y * part(weight, split)).sum().backward();
      EXPECT_TRUE(at::equal(x.grad(), part(weight, joined)));
      EXPECT_EQ(world.traffic(Operation::kAllToAll).calls, 2);
      EXPECT_EQ(world.traffic(Operation::kAllToAll).bytes, 2 * static_cast<int64_t>(x.nbytes()));
      world.reset_traffic();
    }
    EXPECT_NE(error_of(ErrorKind::kShape,
                       [&] {
                         return all_to_all(world, counted({size + 1, 2}, 0.0), 0, 1);
                       })
                  .find("must divide dim 0"),
              std::string::npos);
  });
}

TEST_P(DifferentiableTest, SeveralTensorsGoTogetherAndApartAgain) {
  run_on_ranks(GetParam(), [](const Group& world) {
    const int64_t size = world.size();
    const double first = 1000.0 * static_cast<double>(world.rank());
    const at::Tensor a = counted({2, 3, 4 * size}, first);
    const at::Tensor b = counted({2, 5, 4 * size}, first + 500.0);
    const at::Tensor together = world.reshard_together({a, b}, 2, 1);
    EXPECT_TRUE(at::equal(together, at::cat({world.reshard(a, 2, 1), world.reshard(b, 2, 1)}, 1)));
    const std::vector<at::Tensor> apart = world.reshard_apart(together, {3 * size, 5 * size}, 1, 2);
    EXPECT_TRUE(at::equal(apart[0], a));
    EXPECT_TRUE(at::equal(apart[1], b));
  });
}

TEST_P(DifferentiableTest, MeanOverRanksOfAGatheredLossIsTheGradient) {
  run_on_ranks(GetParam(), [](const Group& world) {
    const int64_t size = world.size();
    for (const int64_t dim : {0, 1}) {
      const at::Tensor x =
          counted({2, 3}, 100.0 * static_cast<double>(world.rank())).requires_grad_();
      std::vector<at::Tensor> parts;
      for (int64_t rank = 0; rank < size; ++rank) {
        parts.push_back(counted({2, 3}, 100.0 * static_cast<double>(rank)));
      }
      const at::Tensor expected = at::cat(parts, dim);
      const at::Tensor all = all_gather(world, x, dim);
      EXPECT_TRUE(at::equal(all.detach(), expected));
      (all * all).sum().backward();
      EXPECT_TRUE(at::equal(x.grad() / static_cast<double>(size), 2 * x.detach()));
    }
    EXPECT_EQ(world.traffic(Operation::kAllGather).calls, 2) << "backward sends nothing";
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DifferentiableTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

TEST(DifferentiableTest, KeepsWhatIsSavedAndNothingOutsideOfGradMode) {
  int64_t calls = 0;
  const Differentiable square = {
      [&](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* saved) {
        EXPECT_FALSE(at::GradMode::is_enabled());
        *saved = {inputs[0]};
        return inputs[0] * inputs[0];
      },
      [&](const std::vector<at::Tensor>& saved, const at::Tensor& gradient) {
        ++calls;
        return std::vector<at::Tensor>{2 * saved[0] * gradient};
      }};
  const at::Tensor x = counted({3}, 1.0).requires_grad_();
  square({square({x})}).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), 4 * x.detach().pow(3)));
  EXPECT_EQ(calls, 2);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(square({x}).requires_grad());
}

TEST(DifferentiableTest, AGroupOfOneChangesNothing) {
  const at::Tensor x = counted({2, 3}, 0.0);
  EXPECT_TRUE(all_to_all({}, x, 0, 1).is_same(x));
  EXPECT_TRUE(all_gather({}, x, 1).is_same(x));
}

}  // namespace differentiable_test
}  // namespace kinora::comm
