// Two levels of ranks, 2 x 2, against what one process computes and what Group does.
#include "kinora/comm/torus.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace torus_test {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// What the ranks bring: [ranks, count], integers from 0 to 12, whose sums and quarters all types
/// hold. Neighbours differ, so that no part can stand for another.
at::Tensor inputs(int64_t num_ranks, int64_t count, at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    all.push_back(at::arange(count, at::kLong).mul(7).add(rank * 5).remainder(13).to(type));
  }
  return at::stack(all);
}

at::Tensor reduced(const at::Tensor& all, Reduction reduction) {
  const at::Tensor exact = all.to(at::kDouble);
  const at::Tensor result = reduction == Reduction::kSum    ? exact.sum(0)
                            : reduction == Reduction::kMean ? exact.mean(0)
                                                            : exact.amax(0);
  return result.to(all.scalar_type());
}

void check_reduce_scatter(const Torus& torus, int64_t count, at::ScalarType type,
                          Reduction reduction) {
  const at::Tensor all = inputs(torus.size(), torus.size() * count, type);
  const at::Tensor expected =
      reduced(all, reduction).narrow(0, torus.rank() * count, count).clone();
  const at::Tensor whole = all[torus.rank()].clone();
  const at::Tensor part = at::full({count}, 99, whole.options());
  torus.reduce_scatter(part, whole, reduction);
  EXPECT_TRUE(at::equal(part, expected));
  EXPECT_TRUE(at::equal(whole, all[torus.rank()])) << "the input must stay";
  part.fill_(99);
  const Work work = torus.reduce_scatter_async(part, whole, reduction);
  work.wait();
  EXPECT_TRUE(at::equal(part, expected));
  const at::Tensor in_place = whole.narrow(0, torus.rank() * count, count);
  torus.reduce_scatter(in_place, whole, reduction);
  EXPECT_TRUE(at::equal(in_place, expected));
}

void check_all_gather(const Torus& torus, int64_t count, at::ScalarType type) {
  const at::Tensor all = inputs(torus.size(), count, type);
  const at::Tensor output = at::full({torus.size(), count}, 99, all.options());
  torus.all_gather(output, all[torus.rank()].clone());
  EXPECT_TRUE(at::equal(output, all));
  output.fill_(99);
  const Work work = torus.all_gather_async(output, all[torus.rank()].clone());
  work.wait();
  EXPECT_TRUE(at::equal(output, all));
  output.fill_(99);
  output[torus.rank()].copy_(all[torus.rank()]);
  torus.all_gather(output, output[torus.rank()]);
  EXPECT_TRUE(at::equal(output, all));
}

void check_all(const Torus& torus) {
  for (const int64_t count : {0, 1, 3, 2001}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte}) {
      SCOPED_TRACE(std::string(at::toString(type)) + ", " + std::to_string(count));
      const bool is_floating = type != at::kLong && type != at::kByte;
      check_all_gather(torus, count, type);
      if (count > 0) {
        check_reduce_scatter(torus, count, type, Reduction::kMax);
      }
      if (type != at::kByte) {
        check_reduce_scatter(torus, count, type, Reduction::kSum);
      }
      if (is_floating && torus.size() == 4) {  // sixths would be rounded
        check_reduce_scatter(torus, count, type, Reduction::kMean);
      }
    }
  }
}

TEST(TorusTest, IsAsOneGroupOfAllRanks) {
  run_on_ranks(4, [](const Group& world) {
    for (const int64_t inside : {1, 2, 4}) {
      for (const int64_t min_bytes : {int64_t{0}, kNever}) {
        SCOPED_TRACE(std::to_string(inside) + " inside, pipelined from " +
                     std::to_string(min_bytes) + " bytes");
        const Torus torus(world, inside, {.min_pipelined_bytes = min_bytes});
        EXPECT_EQ(torus.rank(), world.rank());
        EXPECT_EQ(torus.size(), 4);
        EXPECT_EQ(torus.inside().size(), inside);
        EXPECT_EQ(torus.across().size(), 4 / inside);
        check_all(torus);
      }
    }
  });
}

TEST(TorusTest, RingsHaveMoreThanTwoNodes) {
  run_on_ranks(6, [](const Group& world) {
    for (const int64_t min_bytes : {int64_t{0}, kNever}) {
      const Torus torus(world, 2, {.min_pipelined_bytes = min_bytes});
      EXPECT_EQ(torus.across().size(), 3);
      check_all(torus);
    }
  });
}

/// Sums that round: of each node's two ranks first, in fp32.
TEST(TorusTest, AddsTheRanksOfANodeFirst) {
  run_on_ranks(4, [](const Group& world) {
    constexpr int64_t kCount = 1001;
    std::vector<at::Tensor> all;
    for (int64_t rank = 0; rank < 4; ++rank) {
      all.push_back(
          at::arange(4 * kCount, at::kFloat).mul(0.37 + 0.11 * static_cast<double>(rank)).sin());
    }
    const at::Tensor expected = all[0].add(all[1]).add(all[2].add(all[3]));
    const at::Tensor other_order = all[0].add(all[1]).add(all[2]).add(all[3]);
    EXPECT_FALSE(at::equal(expected, other_order));
    for (const int64_t min_bytes : {int64_t{0}, kNever}) {
      const Torus torus(world, 2, {.min_pipelined_bytes = min_bytes});
      const at::Tensor part = at::empty({kCount}, at::kFloat);
      torus.reduce_scatter(part, all[world.rank()]);
      EXPECT_TRUE(at::equal(part, expected.narrow(0, world.rank() * kCount, kCount)));
    }
  });
}

TEST(TorusTest, ManyCallsMayBeUnderWay) {
  run_on_ranks(4, [](const Group& world) {
    const Torus torus(world, 2, {.min_pipelined_bytes = 0});
    std::vector<at::Tensor> parts;
    std::vector<Work> works;
    for (int64_t call = 1; call <= 5; ++call) {
      const at::Tensor whole = at::arange(4 * 100, at::kFloat).mul(call);
      parts.push_back(at::empty({100}, at::kFloat));
      works.push_back(torus.reduce_scatter_async(parts.back(), whole));
    }
    for (int64_t call = 1; call <= 5; ++call) {
      works[call - 1].wait();
      const at::Tensor expected = at::arange(4 * 100, at::kFloat).mul(4 * call);
      EXPECT_TRUE(at::equal(parts[call - 1], expected.narrow(0, world.rank() * 100, 100)));
    }
  });
}

/// N elements move inside, N / 2 across: bytes as the groups count them.
TEST(TorusTest, OneInsideNthCrosses) {
  run_on_ranks(4, [](const Group& world) {
    constexpr int64_t kCount = 1000;
    constexpr int64_t kBytes = 4 * kCount * 4;  // of the whole
    const at::Tensor whole = at::full({4 * kCount}, 1, at::kFloat);
    const at::Tensor part = at::full({kCount}, 1, at::kFloat);
    for (const bool pipelined : {false, true}) {
      const Torus torus(world, 2, {.min_pipelined_bytes = pipelined ? kCount * 4 : kCount * 4 + 1});
      torus.reduce_scatter(part, whole);
      torus.all_gather(whole, part);
      const auto expect_traffic = [](const Group& group, Operation operation, int64_t calls,
                                     int64_t bytes) {
        EXPECT_EQ(group.traffic(operation).calls, calls) << to_string(operation);
        EXPECT_EQ(group.traffic(operation).bytes, bytes) << to_string(operation);
      };
      expect_traffic(torus.inside(), Operation::kReduceScatter, 2, kBytes);
      expect_traffic(torus.inside(), Operation::kAllGather, 2, kBytes);
      // Around the ring of two nodes a part is sent once an operation.
      expect_traffic(torus.across(), Operation::kExchange, pipelined ? 2 : 0,
                     pipelined ? kBytes / 2 : 0);
      expect_traffic(torus.across(), Operation::kReduceScatter, pipelined ? 0 : 1,
                     pipelined ? 0 : kBytes / 2);
      expect_traffic(torus.across(), Operation::kAllGather, pipelined ? 0 : 1,
                     pipelined ? 0 : kBytes / 2);
    }
  });
}

TEST(TorusTest, EightBitsAcross) {
  run_on_ranks(4, [](const Group& world) {
    constexpr int64_t kCount = 256;
    const Torus torus(world, 2, {.min_pipelined_bytes = 0, .fp8_across = true});
    // Nodes' sums are 7 and -3 in each element: the largest of their blocks, which stay.
    const double mine = world.rank() < 2 ? 3.5 : -1.5;
    const at::Tensor part = at::empty({kCount}, at::kFloat);
    torus.reduce_scatter(part, at::full({4 * kCount}, mine, at::kFloat));
    EXPECT_LE(part.sub(4.0).abs().max().item<float>(), 1e-5);
    EXPECT_EQ(torus.across().traffic(Operation::kAllToAll).bytes,
              2 * kCount + 2 * kCount / 128 * 4);
    const at::Tensor whole = at::empty({4, kCount}, at::kBFloat16);
    torus.all_gather(whole, at::full({kCount}, world.rank() + 1, at::kBFloat16));
    for (int64_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(at::equal(whole[rank], at::full({kCount}, rank + 1, at::kBFloat16)));
    }
    EXPECT_EQ(torus.across().traffic(Operation::kAllGather).bytes,
              2 * kCount + 2 * kCount / 128 * 4);
  });
}

TEST(TorusTest, OneRankIsATorus) {
  const Torus torus;
  const at::Tensor part = at::empty({3}, at::kFloat);
  torus.reduce_scatter(part, at::arange(3, at::kFloat));
  EXPECT_TRUE(at::equal(part, at::arange(3, at::kFloat)));
  EXPECT_EQ(torus.size(), 1);
}

TEST(TorusTest, WrongArgumentsAreRefused) {
  EXPECT_NE(error_of(ErrorKind::kConfig, [] { return Torus(Group(), 2); }).find("got 2"),
            std::string::npos);
  const Torus torus;
  const auto scatter = [&](const at::Tensor& output, const at::Tensor& input) {
    return error_of(ErrorKind::kShape, [&] {
      torus.reduce_scatter(output, input);
      return 0;
    });
  };
  const at::Tensor square = at::full({4, 4}, 1, at::kFloat);
  EXPECT_NE(scatter(at::empty({3}, at::kFloat), square).find("got 16"), std::string::npos);
  EXPECT_NE(scatter(square, square.t()).find("contiguous"), std::string::npos);
  EXPECT_NE(scatter(at::Tensor(), square).find("undefined"), std::string::npos);
}

TEST(TorusTest, RanksInsideAreThoseOfAHost) {
  EXPECT_EQ(ranks_inside({0, 0, 2, 2, 4, 4}), 2);
  EXPECT_EQ(ranks_inside({5, 5, 5, 5}), 4);
  EXPECT_EQ(ranks_inside({0, 1, 2}), 1);
  EXPECT_EQ(ranks_inside({0}), 1);
  // No torus: unequal hosts, hosts that take turns, one that comes back.
  EXPECT_EQ(ranks_inside({0, 0, 2, 2, 2}), 5);
  EXPECT_EQ(ranks_inside({0, 0, 2, 2, 2, 5}), 6);
  EXPECT_EQ(ranks_inside({0, 1, 0, 1}), 4);
  EXPECT_EQ(ranks_inside({0, 0, 2, 2, 0, 0}), 6);
}

TEST(TorusTest, RanksOfOneHostAreOneLevel) {
  run_on_ranks(2, [](const Group& world) {
    const Torus torus = torus_of_hosts(world);
    EXPECT_EQ(torus.inside().size(), 2);
    EXPECT_EQ(torus.across().size(), 1);
  });
}

}  // namespace torus_test
}  // namespace kinora::comm
