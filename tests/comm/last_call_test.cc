#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "kinora/comm/group.h"
#include "tests/comm/ranks.h"

namespace kinora::comm {
namespace last_call_test {

TEST(LastCallTest, AGroupOfOneHasNone) {
  const Group alone;
  alone.all_reduce(at::ones({3}));
  EXPECT_FALSE(alone.last_call().has_value());
  EXPECT_EQ(alone.world().size, 1);
}

TEST(LastCallTest, NamesOperationSizeAndNumber) {
  run_on_ranks(2, [](const Group& world) {
    EXPECT_FALSE(world.last_call().has_value());
    EXPECT_EQ(world.world().rank, world.rank());
    EXPECT_EQ(world.world().size, 2);
    world.all_reduce(at::ones({3}));
    world.barrier();
    world.all_reduce(at::ones({5}));
    const LastCall last = world.last_call().value();
    EXPECT_EQ(last.operation, Operation::kAllReduce);
    EXPECT_EQ(last.bytes, 20);
    EXPECT_EQ(last.sequence, 3);
    EXPECT_EQ(last.num_calls, 3);
    EXPECT_EQ(last.group, "rank " + std::to_string(world.rank()) + " of 2");
    EXPECT_TRUE(last.done);
  });
}

TEST(LastCallTest, IsNotDoneWhileAnotherRankIsAwaited) {
  run_on_ranks(2, [](const Group& world) {
    if (world.rank() == 0) {
      const Work work = world.all_reduce_async(at::ones({4}));
      // Rank 1 joins only after the message below.
      EXPECT_FALSE(work.is_done());
      EXPECT_FALSE(world.last_call()->done);
      world.send(at::ones({1}), 1);
      work.wait();
      EXPECT_TRUE(work.is_done());
    } else {
      world.receive(at::ones({1}), 0);
      world.all_reduce(at::ones({4}));
    }
    world.barrier();
    EXPECT_TRUE(world.last_call()->done);
  });
}

TEST(LastCallTest, SplitsCountTogetherWithTheirWorld) {
  run_on_ranks(4, [](const Group& world) {
    const Group pair = world.split({{0, 1}, {2, 3}});
    world.barrier();
    pair.all_reduce(at::ones({2}));
    const LastCall last = world.last_call().value();
    EXPECT_EQ(last.operation, Operation::kAllReduce);
    EXPECT_EQ(last.sequence, 1);
    EXPECT_EQ(last.num_calls, 2);
    EXPECT_EQ(last.group, "rank " + std::to_string(pair.rank()) + " of 2 (world rank " +
                              std::to_string(world.rank()) + ")");
    EXPECT_EQ(pair.world().size, 4);
    EXPECT_EQ(world.split({{0}, {1}, {2}, {3}}).world().rank, world.rank());
  });
}

}  // namespace last_call_test
}  // namespace kinora::comm
