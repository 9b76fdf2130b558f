// kinora train --ranks: several processes, their end together, restarts and the watchdog. On the
// CPU, through Gloo.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kinora/core/free_port.h"
#include "tests/apps/rank_process.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

class RanksTest : public RunTest {
 protected:
  [[nodiscard]] Arguments ranks_command(const fs::path& run, int64_t ranks,
                                        const Arguments& more = {}) const {
    Arguments arguments = train_command(run, more);
    arguments.insert(arguments.end(), {"--ranks", std::to_string(ranks)});
    return arguments;
  }

  /// Waits until the run has logged `lines` steps.
  static void wait_for_log(Program& program, const fs::path& run, int64_t lines) {
    const auto end = Clock::now() + std::chrono::seconds(120);
    while (Clock::now() < end) {
      ASSERT_TRUE(program.is_running()) << program.error_text();
      const std::string text = fs::exists(run / "log.jsonl") ? read_text(run / "log.jsonl") : "";
      if (std::count(text.begin(), text.end(), '\n') >= lines) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    FAIL() << "no step was logged: " << program.error_text();
  }
};

constexpr const char* kEndless = "train.steps=1000000";

TEST_F(RanksTest, TwoRanksLearnAsOneDoes) {
  const Outcome outcome =
      run_kinora(ranks_command(run_dir("two"), 2, {"train.micro_batch=4"}), folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("self-check: 2 ranks on 1 host"));
  train_well(run_dir("one"), {"train.micro_batch=4"});
  const std::vector<LogLine> two = read_log(run_dir("two"));
  const std::vector<LogLine> one = read_log(run_dir("one"));
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    // The sum over ranks adds in another order.
    EXPECT_NEAR(two[i].at("loss").get<double>(), one[i].at("loss").get<double>(), 1e-4) << i;
  }
}

TEST_F(RanksTest, AKilledRankBringsAllDown) {
  const fs::path run = run_dir("killed");
  Program program(kinora_program(), ranks_command(run, 2, {kEndless}), folder());
  wait_for_log(program, run, 3);
  const pid_t rank = rank_process(run, 1, 0);
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  const Outcome outcome = program.wait(std::chrono::seconds(10));  // as promised
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 failed first: killed by SIGKILL"));
  EXPECT_EQ(rank_process(run, 0, 0), 0);
}

TEST_F(RanksTest, RestartsGoOnFromTheCheckpoint) {
  const fs::path run = run_dir("restarted");
  Arguments command = ranks_command(run, 2, {"train.steps=400", "checkpoint.every=5"});
  command.insert(command.end(), {"--max-restarts", "1"});
  Program program(kinora_program(), command, folder());
  wait_for_log(program, run, 12);
  const pid_t rank = rank_process(run, 0, 0);
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 failed first: killed by SIGKILL"));
  EXPECT_THAT(outcome.err, HasSubstr("all ranks start again: restart 1 of 1"));
  EXPECT_THAT(outcome.err, HasSubstr("restart 1: going on as by --resume auto"));
  EXPECT_THAT(outcome.err, HasSubstr("resumed from"));
  EXPECT_EQ(read_log(run).size(), 400U);
  EXPECT_EQ(checkpoint_steps(run).back(), 400);
}

TEST_F(RanksTest, AStoppedRankIsReportedByTheWatchdog) {
  const fs::path run = run_dir("stalled");
  Program program(kinora_program(), ranks_command(run, 2, {kEndless, "train.stall_timeout=2"}),
                  folder());
  wait_for_log(program, run, 3);
  const pid_t rank = rank_process(run, 1, 0);
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGSTOP), 0);
  const Outcome outcome = program.wait(std::chrono::seconds(60));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("[watchdog] nothing has moved for "));
  EXPECT_THAT(outcome.err, HasSubstr("<- behind, silent for "));
  EXPECT_EQ(rank_process(run, 1, 0), 0);
}

TEST_F(RanksTest, WhatCannotBeIsRefusedOnceAndNotRestarted) {
  const fs::path run = run_dir("refused");
  train_well(run, {"train.steps=1"});
  Arguments command = ranks_command(run, 2);
  command.insert(command.end(), {"--max-restarts", "3"});
  const Outcome outcome = run_kinora(command, folder());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("holds a run"));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("start again")));

  const auto expect_refused = [this](const Arguments& options, const std::string& message) {
    Arguments arguments = train_command(run_dir("never"));
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome refused = run_kinora(arguments, folder());
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr(message));
  };
  expect_refused({"--ranks", "0"}, "--ranks must be auto or a positive number, got 0");
  expect_refused({"--ranks", "two"}, "--ranks must be auto or a positive number, got two");
  expect_refused({"--node-rank", "1"}, "but --nodes is 1");
  expect_refused({"--nodes", "2", "--ranks", "1"}, "--node-rank must be 0 to 1");
  expect_refused({"--nodes", "2", "--node-rank", "0"}, "--ranks, the number on each machine");
  expect_refused({"--nodes", "2", "--node-rank", "0", "--ranks", "1"}, "--rendezvous HOST:PORT");
  expect_refused({"--nodes", "2", "--node-rank", "0", "--ranks", "1", "--rendezvous", "host:port"},
                 "--rendezvous must be HOST:PORT, got host:port");
}

TEST_F(RanksTest, MachinesStartedByHandMeetAtTheRendezvous) {
  const fs::path run = run_dir("machines");
  const std::string port = std::to_string(free_port());
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);  // else Gloo looks for the host's name
  const auto machine = [&](int node) {
    Arguments command = ranks_command(run, 1, {"train.micro_batch=4"});
    command.insert(command.end(), {"--nodes", "2", "--node-rank", std::to_string(node),
                                   "--rendezvous", "127.0.0.1:" + port});
    return command;
  };
  Program second(kinora_program(), machine(1), folder());
  Program first(kinora_program(), machine(0), folder());
  const Outcome outcome = first.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("self-check: 2 ranks"));
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(read_log(run).size(), 20U);
}

}  // namespace
}  // namespace kinora::apps
