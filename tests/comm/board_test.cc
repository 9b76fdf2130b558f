#include "kinora/comm/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kinora/comm/rendezvous.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace board_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

/// A world of two whose store this process keeps.
World hosted_world(const StoreServer& store) {
  World world;
  world.size = 2;
  world.local_size = 0;
  world.store_host = "127.0.0.1";
  world.store_port = store.port();
  world.store_is_hosted = true;
  return world;
}

TEST(BoardTest, KeepsTextsByKey) {
  const StoreServer store;
  Board board(hosted_world(store));
  board.put("a", "1");
  board.put("a", "2");
  board.put("b", "line\nline");
  EXPECT_THAT(board.read_all({"a", "b"}),
              ElementsAre(Optional(std::string("2")), Optional(std::string("line\nline"))));
  EXPECT_THAT(
      board.read_all({"b", "none", "a"}),
      ElementsAre(Optional(std::string("line\nline")), std::nullopt, Optional(std::string("2"))));
  EXPECT_EQ(board.read("none", std::chrono::milliseconds(20)), std::nullopt);
}

TEST(BoardTest, TheFirstTextStays) {
  const StoreServer store;
  Board one(hosted_world(store));
  Board other(hosted_world(store));
  EXPECT_EQ(one.put_first("a", "first"), "first");
  EXPECT_EQ(other.put_first("a", "second"), "first");
  EXPECT_EQ(failure(one), std::nullopt);
  put_failure(other, "rank 1 failed");
  put_failure(one, "rank 0 failed");
  EXPECT_EQ(failure(one), "rank 1 failed");
}

TEST(BoardTest, WorldsInOneStoreAreApart) {
  const StoreServer store;
  World restarted = hosted_world(store);
  restarted.store_prefix = store_prefix(1);
  Board before(hosted_world(store));
  Board after(restarted);
  before.put("a", "1");
  EXPECT_EQ(after.read("a"), std::nullopt);
}

TEST(BoardTest, SaysThatTheStoreIsLost) {
  auto store = std::make_unique<StoreServer>();
  const World world = hosted_world(*store);
  Board board(world);
  store.reset();
  EXPECT_THAT(error_of(ErrorKind::kComm,
                       [&] {
                         board.put("a", "1");
                         return board.read("a");
                       }),
              HasSubstr("the store was lost"));
  EXPECT_THAT(
      error_of(ErrorKind::kComm, [&] { return Board(world, std::chrono::milliseconds(50)); }),
      HasSubstr("could not reach the store"));
}

TEST(BoardTest, RanksReadEachOthersWhileTheyWaitInTheGroup) {
  run_on_ranks(2, [](const Group& world) {
    Board board(world.world());
    if (world.rank() == 0) {
      const Work barrier = world.barrier_async();  // which rank 1 joins after it has read
      board.put("word", "from 0");
      barrier.wait();
    } else {
      EXPECT_EQ(board.read("word", std::chrono::seconds(20)), "from 0");
      world.barrier();
    }
  });
}

}  // namespace board_test
}  // namespace kinora::comm
