#include "kinora/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "kinora/comm/board.h"
#include "kinora/comm/rendezvous.h"
#include "kinora/core/error.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace group_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor filled(double value, int64_t count = 4) {
  return at::full({count}, value, at::kFloat);
}

double first(const at::Tensor& tensor) {
  return tensor.flatten()[0].item<double>();
}

TEST(GroupTest, OfOneCopiesAndCountsNothing) {
  const Group group;
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  const at::Tensor input = filled(3);
  const at::Tensor output = filled(0);
  group.all_gather(output, input);
  EXPECT_EQ(first(output), 3);
  group.reduce_scatter(output, filled(4), Reduction::kMean);
  EXPECT_EQ(first(output), 4);
  group.all_to_all(output, input);
  EXPECT_EQ(first(output), 3);
  group.exchange(output, 0, filled(5), 0);
  EXPECT_EQ(first(output), 5);
  group.all_reduce(output);
  group.broadcast(output, 0);
  group.barrier();
  EXPECT_EQ(first(output), 5);
  EXPECT_EQ(group.traffic(Operation::kAllGather).calls, 0);
  EXPECT_EQ(group.split({{0}}).size(), 1);
  EXPECT_EQ(connect(World{}, at::kCPU).size(), 1);
}

// Gloo's thread, in libtorch, calls it by name.
TEST(GroupTest, PollsOfLibrariesAreThoseOfTheProgram) {
  Dl_info info{};
  ASSERT_NE(::dladdr(::dlsym(RTLD_DEFAULT, "epoll_wait"), &info), 0);
  EXPECT_EQ(std::filesystem::canonical(info.dli_fname),
            std::filesystem::canonical("/proc/self/exe"));
}

TEST(GroupTest, RefusesUnsuitableArguments) {
  const Group group;
  const at::Tensor bytes = at::zeros({4}, at::kByte);
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { group.all_reduce(bytes); }),
              HasSubstr("uint8 stands for bytes"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] { group.all_reduce(at::zeros({4}, at::kLong), Reduction::kMean); }),
              HasSubstr("mean needs a floating type"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { group.all_reduce(at::zeros({4}, at::kDouble)); }),
              HasSubstr("got Double"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         group.all_reduce(at::zeros({4, 4}).t());
                       }),
              HasSubstr("contiguous"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { group.all_gather(filled(0, 5), filled(0)); }),
              HasSubstr("[all_gather] the whole must have 1 times the 4 elements"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { group.all_gather(bytes, filled(0)); }),
              HasSubstr("one type and device, got Byte on cpu and Float on cpu"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { group.broadcast(filled(0), 1); }),
              HasSubstr("root must be one of the 1 group ranks, got 1"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { group.send(filled(0), 0); }),
              HasSubstr("needs another"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         (void)group.split({{0}, {0}});
                       }),
              HasSubstr("exactly once, got 0 twice"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)group.split({}); }),
              HasSubstr("0 is in no part"));
}

TEST(GroupTest, SplitsTwoByTwo) {
  run_on_ranks(4, [](const Group& world) {
    // A mesh's rows and columns, the latter with ranks in another order; then a part of one.
    const Group row = world.split({{0, 1}, {2, 3}});
    const Group column = world.split({{2, 0}, {3, 1}});
    EXPECT_EQ(row.size(), 2);
    EXPECT_EQ(row.rank(), world.rank() % 2);
    EXPECT_EQ(column.rank(), world.rank() < 2 ? 1 : 0);
    const int64_t first_of_row = world.rank() / 2 * 2;
    EXPECT_THAT(row.world_ranks(), ElementsAre(first_of_row, first_of_row + 1));
    EXPECT_THAT(column.world_ranks(), ElementsAre(world.rank() % 2 + 2, world.rank() % 2));

    // Groups of one rank take turns in any order.
    const at::Tensor in_row = filled(static_cast<double>(world.rank()));
    const at::Tensor in_column = in_row.clone();
    if (world.rank() == 0) {
      row.all_reduce(in_row);
      column.all_reduce(in_column);
    } else {
      const Work work = column.all_reduce_async(in_column);
      row.all_reduce(in_row);
      work.wait();
    }
    EXPECT_EQ(first(in_row), static_cast<double>(2 * first_of_row + 1));
    EXPECT_EQ(first(in_column), static_cast<double>(2 * (world.rank() % 2) + 2));

    EXPECT_EQ(row.split({{1}, {0}}).size(), 1);
    const Group rest = world.split({{1}, {0, 2, 3}});
    EXPECT_EQ(rest.size(), world.rank() == 1 ? 1 : 3);
    const at::Tensor tensor = filled(1);
    rest.all_reduce(tensor);
    EXPECT_EQ(first(tensor), static_cast<double>(rest.size()));
    EXPECT_EQ(rest.traffic(Operation::kAllReduce).calls, world.rank() == 1 ? 0 : 1);
    EXPECT_EQ(world.traffic(Operation::kAllReduce).calls, 0);
  });
}

// One rank may be through with a group before another has made its connections.
TEST(GroupTest, EndsAsSoonAsItIsMade) {
  run_on_ranks(4, [](const Group& world) {
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(world.split({{0, 1, 2, 3}}).size(), 4);
    }
  });
}

TEST(GroupTest, OverlapsAndCounts) {
  run_on_ranks(2, [](const Group& world) {
    // Waited for in another order on each rank, with an exchange in between.
    const at::Tensor sum = filled(1, 300001);
    const at::Tensor whole = filled(0, 200);
    const at::Tensor message = filled(0);
    const at::Tensor exchanged = filled(0);
    const Work reducing = world.all_reduce_async(sum);
    const Work gathering =
        world.all_gather_async(whole, filled(static_cast<double>(world.rank() + 5), 100));
    const int64_t peer = 1 - world.rank();
    const Work sending = world.send_async(filled(static_cast<double>(world.rank() + 7)), peer);
    world.receive(message, peer);
    sending.wait();
    world.exchange(exchanged, peer, message, peer);
    (world.rank() == 0 ? gathering : reducing).wait();
    (world.rank() == 0 ? reducing : gathering).wait();
    reducing.wait();
    EXPECT_EQ(first(sum), 2);
    EXPECT_EQ(sum[300000].item<double>(), 2);
    EXPECT_EQ(whole[99].item<double>(), 5);
    EXPECT_EQ(whole[100].item<double>(), 6);
    EXPECT_EQ(first(message), static_cast<double>(peer + 7));
    EXPECT_EQ(first(exchanged), static_cast<double>(world.rank() + 7));

    Group copy;
    copy = world;  // shares the counters
    EXPECT_EQ(copy.traffic(Operation::kAllReduce).bytes, 4 * 300001);
    EXPECT_EQ(copy.traffic(Operation::kAllGather).bytes, 4 * 200);
    EXPECT_EQ(copy.traffic(Operation::kSend).bytes, 16);
    EXPECT_EQ(copy.traffic(Operation::kReceive).calls, 1);
    EXPECT_EQ(copy.traffic(Operation::kExchange).bytes, 16);
    copy.reset_traffic();
    world.reduce_scatter(filled(0, 2), filled(0));
    world.all_to_all(filled(0), filled(0));
    world.broadcast(filled(0), 1);
    world.barrier();
    EXPECT_EQ(world.traffic(Operation::kAllReduce).calls, 0);
    for (const Operation operation :
         {Operation::kReduceScatter, Operation::kAllToAll, Operation::kBroadcast}) {
      EXPECT_EQ(world.traffic(operation).calls, 1);
      EXPECT_EQ(world.traffic(operation).bytes, 16);
    }
    EXPECT_EQ(world.traffic(Operation::kBarrier).calls, 1);
    EXPECT_EQ(world.traffic(Operation::kBarrier).bytes, 0);

    // Without a launcher's store: rank 0 keeps it.
    const at::Tensor port = at::zeros({1}, at::kLong);
    if (world.rank() == 0) {
      port.fill_(unused_port());
    }
    world.broadcast(port, 0);
    World own = world_from_environment();
    own.store_is_hosted = false;
    own.store_port = port.item<int64_t>();
    const Group second = connect(own, at::kCPU);
    second.barrier();
  });
}

TEST(GroupTest, DeadRankIsAnErrorAtOnce) {
  run_on_ranks(2, [](const Group& world) {
    world.all_reduce(filled(1));
    if (world.rank() == 1) {
      _exit(0);
    }
    const std::string message = error_of(ErrorKind::kComm, [&] { world.broadcast(filled(1), 1); });
    EXPECT_THAT(message, HasSubstr("[comm] broadcast 2 on rank 0 of 2 failed: "));
    EXPECT_THAT(error_of(ErrorKind::kComm, [&] { world.barrier(); }),
                HasSubstr("barrier 3 on rank 0 of 2 failed: an earlier one did: "));
    EXPECT_THAT(error_of(ErrorKind::kComm, [&] { world.receive(filled(0), 1); }),
                HasSubstr("receive 4 on rank 0 of 2 failed: "));
  });
}

TEST(GroupTest, LateRankIsAnErrorAfterTheTimeout) {
  RankOptions options;
  options.group.operation_timeout = seconds(4);  // also of the first call, on a busy machine
  run_on_ranks(
      2,
      [](const Group& world) {
        world.barrier();
        Board board(world.world());
        if (world.rank() == 1) {  // alive, and silent until rank 0 has looked
          EXPECT_EQ(board.read("done", seconds(40)), "yes");
          return;
        }
        const Work receiving = world.receive_async(filled(0), 1);
        EXPECT_THAT(error_of(ErrorKind::kComm, [&] { world.all_reduce(filled(1)); }),
                    HasSubstr("all_reduce 3 on rank 0 of 2 failed: "));
        EXPECT_THAT(error_of(ErrorKind::kComm, [&] { receiving.wait(); }),
                    HasSubstr("receive 2 on rank 0 of 2 failed: "));
        board.put("done", "yes");
      },
      options);
}

void connect_within(const World& world, milliseconds timeout) {
  static_cast<void>(connect(world, at::kCPU, {timeout, timeout}));
}

TEST(RendezvousTest, NamesMissingAndDoubleRanks) {
  const StoreServer store;
  World world;
  world.size = 4;
  world.rank = 2;
  world.store_host = "127.0.0.1";
  world.store_port = store.port();
  world.store_is_hosted = true;
  EXPECT_THAT(error_of(ErrorKind::kComm, [&] { connect_within(world, seconds(1)); }),
              HasSubstr("missing ranks: 0, 1, 3."));
  EXPECT_THAT(error_of(ErrorKind::kComm, [&] { connect_within(world, seconds(1)); }),
              HasSubstr("two processes came to the store"));
  world.store_prefix = "again";
  EXPECT_THAT(error_of(ErrorKind::kComm, [&] { connect_within(world, seconds(1)); }),
              HasSubstr("missing ranks: 0, 1, 3."));
}

TEST(RendezvousTest, SaysWhenTheStoreIsNotThereOrTaken) {
  World world;
  world.size = 2;
  world.rank = 1;
  world.store_host = "127.0.0.1";
  world.store_port = unused_port();
  EXPECT_THAT(error_of(ErrorKind::kComm, [&] { connect_within(world, milliseconds(300)); }),
              HasSubstr("rank 0 is missing"));
  const StoreServer store;
  world.rank = 0;
  world.store_port = store.port();
  EXPECT_THAT(error_of(ErrorKind::kComm, [&] { connect_within(world, milliseconds(300)); }),
              HasSubstr("is the port taken"));
}

}  // namespace group_test
}  // namespace kinora::comm
