#include "kinora/train/watchdog.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "kinora/comm/board.h"
#include "tests/comm/ranks.h"

namespace kinora::train {
namespace watchdog_test {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr double kLimit = 0.4;                 // seconds
constexpr std::chrono::seconds kPatience{20};  // what takes as long has failed
constexpr std::chrono::milliseconds kWhile{static_cast<int64_t>(3e3 * kLimit)};

/// A Watchdog whose verdict is kept instead of ending the process.
class Watched {
 public:
  explicit Watched(const comm::Group& world, std::function<std::string()> data_file = {})
      : watchdog(world, {.seconds = kLimit,
                         .data_file = std::move(data_file),
                         .end_process = [this](int code) { code_.set_value(code); }}) {}

  /// 0: it did not end the process within the time.
  int code_within(std::chrono::milliseconds time) {
    return future_.wait_for(time) == std::future_status::ready ? future_.get() : 0;
  }

 private:
  std::promise<int> code_;
  std::future<int> future_ = code_.get_future();

 public:
  Watchdog watchdog;  // ends before the promise
};

TEST(WatchdogTest, OneRankThatStandsStillIsToldFromOneThatMoves) {
  testing::internal::CaptureStderr();
  Watched watched(comm::Group(), [] { return "slow.tar"; });
  watched.watchdog.progress(1);
  const auto until = std::chrono::steady_clock::now() + kWhile;
  int64_t step = 1;
  while (std::chrono::steady_clock::now() < until) {
    watched.watchdog.enter(Phase::kData, ++step);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(watched.code_within(std::chrono::milliseconds(0)), 0);
  EXPECT_EQ(watched.code_within(kPatience), kStalledCode);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("[watchdog] nothing has moved for "),
                    HasSubstr(" " + std::to_string(step) + " "), HasSubstr("slow.tar")));
}

TEST(WatchdogTest, PhasesThatTakeLongAreGivenTheTime) {
  Watched watched{comm::Group()};
  watched.watchdog.progress(1);
  watched.watchdog.enter(Phase::kCheckpoint, 2);
  EXPECT_EQ(watched.code_within(kWhile), 0);
  watched.watchdog.enter(Phase::kUpdate, 2);
  EXPECT_EQ(watched.code_within(kPatience), kStalledCode);
}

TEST(WatchdogTest, TheRankBehindIsBlamedByAllInOneTable) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    testing::internal::CaptureStderr();
    Watched watched(world);
    world.barrier();
    watched.watchdog.progress(1);
    watched.watchdog.enter(Phase::kForwardBackward, 2);
    std::thread waits;  // in a collective that rank 2 does not join before all have their code
    if (world.rank() != 2) {
      waits = std::thread([&world] { world.all_reduce(at::ones({1024})); });
    }
    const int code = watched.code_within(kPatience);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, world.rank() == 2 ? kStalledCode : kPeerFailedCode) << said;

    comm::Board board(world.world());
    const std::string text = said.find("finished") == std::string::npos ? "no table" : said;
    board.put("said/" + std::to_string(world.rank()), text);
    const auto all = board.read_all({"said/0", "said/1", "said/2", "said/3"}, kPatience);
    if (world.rank() == 2) {
      world.all_reduce(at::ones({1024}));
    } else {
      waits.join();
    }
    int num_tables = 0;
    for (const auto& other : all) {
      ASSERT_TRUE(other.has_value());
      if (*other != "no table") {
        ++num_tables;
        EXPECT_THAT(
            *other,
            ContainsRegex("\n *0 [^\n]*all_reduce 2 \\(rank 0 of 4\\), 4[.0]* KiB, under way"));
        EXPECT_THAT(*other,
                    ContainsRegex("\n *2 [^\n]*barrier 1 \\(rank 2 of 4\\)[^\n]*<- behind"));
      }
    }
    EXPECT_EQ(num_tables, 1);
    world.barrier();
  });
}

TEST(WatchdogTest, ARankThatMovesKeepsTheOthersWaiting) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    Watched watched(world);
    watched.watchdog.progress(1);
    watched.watchdog.enter(world.rank() == 0 ? Phase::kCheckpoint : Phase::kUpdate, 2);
    EXPECT_EQ(watched.code_within(kWhile), 0);
    world.barrier();
  });
}

TEST(WatchdogTest, AReportedFailureEndsTheOthers) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    testing::internal::CaptureStderr();
    {
      Watched watched(world);
      comm::Board board(world.world());
      if (world.rank() == 1) {
        comm::put_failure(board, "rank 1 failed: killed by SIGKILL");
      }
      EXPECT_EQ(watched.code_within(kPatience), kPeerFailedCode);
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("rank 1 failed: killed by SIGKILL; this rank ends with it"));
    world.barrier();
  });
}

}  // namespace watchdog_test
}  // namespace kinora::train
