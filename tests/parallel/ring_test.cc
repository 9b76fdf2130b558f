// Parts and sums that go around rings of one and two levels.
#include "kinora/parallel/ring.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <set>

#include "kinora/parallel/sequence.h"
#include "tests/comm/ranks.h"

namespace kinora::parallel {
namespace ring_test {

at::Tensor filled(int64_t value) {
  return at::full({3}, static_cast<double>(value), at::kFloat);
}

/// Rings of `inside` neighbours in the world.
Rings rings_of(const comm::Group& world, int64_t inside) {
  const SequenceGroups groups =
      sequence_groups({SequenceScheme::kNdRing, 1, inside, world.size() / inside, ""});
  return {world.split(groups.ring_inside), world.split(groups.ring_across)};
}

void check(const comm::Group& world, int64_t inside) {
  SCOPED_TRACE("rings of " + std::to_string(inside));
  const Rings rings = rings_of(world, inside);
  EXPECT_EQ(rings.index(), world.rank());
  const int64_t size = world.size();
  std::set<int64_t> seen;
  SummedParts sums(rings);
  for (PassingParts parts(rings, filled(world.rank())); !parts.done(); parts.next()) {
    EXPECT_TRUE(seen.empty() ? parts.owner() == world.rank() : parts.owner() != world.rank());
    seen.insert(parts.owner());
    EXPECT_TRUE(at::equal(parts.here(), filled(parts.owner())));
    sums.add(filled(100 * parts.owner() + world.rank()));
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
  EXPECT_TRUE(at::equal(sums.finish(), filled(100 * size * world.rank() + size * (size - 1) / 2)));

  const int64_t across = size / inside;
  EXPECT_EQ(rings.inside.traffic(comm::Operation::kExchange).calls, 2 * across * (inside - 1));
  EXPECT_EQ(rings.across.traffic(comm::Operation::kExchange).calls, 2 * (across - 1));
}

TEST(RingTest, TwoRanks) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    check(world, 1);
    check(world, 2);
  });
}

TEST(RingTest, ThreeRanks) {
  comm::run_on_ranks(3, [](const comm::Group& world) {
    check(world, 1);
    check(world, 3);
  });
}

TEST(RingTest, EveryShapeOfFourAndSixRanks) {
  for (const int64_t ranks : {4, 6}) {
    comm::run_on_ranks(ranks, [](const comm::Group& world) {
      for (int64_t inside = 1; inside <= world.size(); ++inside) {
        if (world.size() % inside == 0) {
          check(world, inside);
        }
      }
    });
  }
}

TEST(RingTest, AloneThereIsNoOther) {
  SummedParts sums({});
  PassingParts parts({}, filled(7));
  EXPECT_EQ(parts.owner(), 0);
  sums.add(parts.here().clone());
  parts.next();
  EXPECT_TRUE(parts.done());
  EXPECT_TRUE(at::equal(sums.finish(), filled(7)));
}

}  // namespace ring_test
}  // namespace kinora::parallel
