#include "kinora/comm/rehearsal.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace rehearsal_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::array<Operation, 6> kOperations = {Operation::kAllReduce,     Operation::kAllGather,
                                                  Operation::kReduceScatter, Operation::kAllToAll,
                                                  Operation::kBroadcast,     Operation::kExchange};

/// One of each, of a group of `group.size()` ranks. Returns what was received.
std::vector<at::Tensor> call_all(const Group& group) {
  const int64_t size = group.size();
  const at::Tensor part = at::ones({3});
  const at::Tensor whole = at::ones({3 * size});
  std::vector<at::Tensor> received = {at::full({3}, 7.0), at::full({3 * size}, 7.0),
                                      at::full({3}, 7.0), at::full({3 * size}, 7.0)};
  group.all_reduce(part);
  group.all_gather(received[1], part);
  group.reduce_scatter(received[0], whole);
  group.all_to_all(received[3], whole);
  group.broadcast(whole, 0);
  const int64_t next = (group.rank() + 1) % size;
  const int64_t previous = (group.rank() + size - 1) % size;
  group.exchange_async(received[2], previous, part, next).wait();
  group.barrier();
  return received;
}

TEST(RehearsalTest, CountsWhatRealRanksCount) {
  run_on_ranks(4, [](const Group& world) {
    const auto calls = std::make_shared<RehearsedCalls>();
    const Group rehearsed = rehearse(world.world(), calls);
    EXPECT_EQ(rehearsed.rank(), world.rank());
    EXPECT_EQ(rehearsed.world_ranks(), world.world_ranks());
    const std::vector<std::vector<int64_t>> parts = {{0, 2}, {1, 3}};
    const std::array<Group, 2> real = {world, world.split(parts)};
    const std::array<Group, 2> noted = {rehearsed, rehearsed.split(parts)};
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_EQ(noted[i].world_ranks(), real[i].world_ranks());
      static_cast<void>(call_all(real[i]));
      for (const at::Tensor& received : call_all(noted[i])) {
        EXPECT_TRUE(received.eq(7.0).all().item<bool>()) << "nothing moves";
      }
      for (const Operation operation : kOperations) {
        EXPECT_EQ(noted[i].traffic(operation).calls, real[i].traffic(operation).calls);
        EXPECT_EQ(noted[i].traffic(operation).bytes, real[i].traffic(operation).bytes);
      }
    }
    EXPECT_EQ(calls->size(), 14U);
  });
}

TEST(RehearsalTest, NotesCallsInTheirOrderWithoutOtherRanks) {
  const auto calls = std::make_shared<RehearsedCalls>();
  World world;
  world.rank = 2;
  world.size = 4;
  const Group group = rehearse(world, calls);
  group.split({{0, 2}, {1, 3}}).all_to_all(at::zeros({6}), at::zeros({6}));
  group.exchange(at::zeros({5}), 1, at::zeros({5}), 3);
  ASSERT_EQ(calls->size(), 2U);
  EXPECT_EQ(calls->front().operation, Operation::kAllToAll);
  EXPECT_EQ(calls->front().bytes, 24);
  EXPECT_THAT(calls->front().world_ranks, ElementsAre(0, 2));
  EXPECT_EQ(calls->back().operation, Operation::kExchange);
  EXPECT_EQ(calls->back().bytes, 20);
  EXPECT_EQ(calls->back().from, 1);
  EXPECT_EQ(calls->back().to, 3);
  EXPECT_THAT(
      error_of(ErrorKind::kShape, [&] { group.all_to_all(at::zeros({6}), at::zeros({6})); }),
      HasSubstr("must divide"));
}

}  // namespace rehearsal_test
}  // namespace kinora::comm
