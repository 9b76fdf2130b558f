// kinora train --ranks: several processes, their end together, restarts and the watchdog. On the
// CPU, through Gloo.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "kinora/core/free_port.h"
#include "tests/apps/rank_process.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace ranks_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RanksTest : public RunTest {
 protected:
  [[nodiscard]] Arguments ranks_command(const fs::path& run, int64_t ranks,
                                        const Arguments& more = {}) const {
    Arguments arguments = train_command(run, more);
    arguments.insert(arguments.end(), {"--ranks", std::to_string(ranks)});
    return arguments;
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

TEST_F(RanksTest, TheLogSaysWhereTimeGoesOnAllRanks) {
  const Outcome outcome =
      run_kinora(ranks_command(run_dir("two"), 2, {"train.log_every=4"}), folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  int64_t told = 0;
  for (const LogLine& line : read_log(run_dir("two"))) {
    const double step = line.at("step_s");
    const double communication = line.at("communication_s");
    EXPECT_GT(step, 0.0);
    EXPECT_GT(communication, 0.0);
    EXPECT_NEAR(
        line.at("compute_s").get<double>() + communication + line.at("data_wait_s").get<double>(),
        step, 1e-9 + 1e-6 * step);
    EXPECT_NEAR(line.at("communication_share").get<double>(), communication / step, 1e-9);
    if (!line.contains("ranks_step")) {
      EXPECT_FALSE(line.contains("slow_rank"));
      continue;
    }
    told += 4;
    EXPECT_EQ(line.at("ranks_step").get<int64_t>(), told);
    EXPECT_GE(line.at("step").get<int64_t>(), told);
    EXPECT_LT(line.at("slow_rank").get<int64_t>(), 2);
    EXPECT_GE(line.at("slowness").get<double>(), 1.0);
    for (const std::string key : {"compute_s", "communication_s", "data_wait_s"}) {
      const double median = line.at(key + "_median");
      EXPECT_LE(line.at(key + "_min").get<double>(), median);
      EXPECT_GE(line.at(key + "_max").get<double>(), median);
    }
    EXPECT_GT(line.at("compute_s_min").get<double>(), 0.0);
  }
  EXPECT_GE(told, 16) << "of 20 steps, the last of which may have had no line behind it";

  train_well(run_dir("one"), {"train.steps=3"});
  for (const LogLine& line : read_log(run_dir("one"))) {
    EXPECT_EQ(line.at("communication_s").get<double>(), 0.0);
    EXPECT_GT(line.at("compute_s").get<double>(), 0.0);
    EXPECT_FALSE(line.contains("slow_rank"));
  }
}

TEST_F(RanksTest, LargerBucketsAreResumedFromSmallerOnes) {
  const fs::path run = run_dir("buckets");
  const Arguments small = {"model.depth=6", "train.steps=3", "parallel.plugin=zero2"};
  Outcome outcome = run_kinora(ranks_command(run, 2, small), folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(", in 10 buckets"));
  Arguments large = ranks_command(
      run, 2, {"model.depth=6", "train.steps=6", "parallel.plugin=zero2", "parallel.bucket_mib=1"});
  large.insert(large.end(), {"--resume", "auto"});
  outcome = run_kinora(large, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(", in 8 buckets"));
  const Outcome whole =
      run_kinora(ranks_command(run_dir("whole"), 2,
                               {"model.depth=6", "train.steps=6", "parallel.plugin=zero2"}),
                 folder());
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::vector<LogLine> got = read_log(run);
  const std::vector<LogLine> want = read_log(run_dir("whole"));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].at("loss"), want[i].at("loss")) << i;
  }
}

/// Two ranks under another launcher than ours.
class LauncherTest : public RanksTest {
 protected:
  void train_under(const std::string& launcher, Arguments arguments) const {
    const fs::path run = run_dir("launched");
    arguments.push_back(kinora_program().string());
    const Arguments train = train_command(run, {"parallel.plugin=zero1"});
    arguments.insert(arguments.end(), train.begin(), train.end());
    const Outcome outcome = Program(launcher, arguments, folder()).wait();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("self-check: 2 ranks on 1 host"));
    EXPECT_EQ(read_log(run).size(), 20U);
  }
};

TEST_F(LauncherTest, RanksOfMpirunFindEachOther) {
  if (std::system("mpirun --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no mpirun";
  }
  train_under("mpirun", {"--allow-run-as-root", "--oversubscribe", "-n", "2", "-x",
                         "MASTER_PORT=" + std::to_string(free_port())});
}

TEST_F(LauncherTest, RanksOfSrunFindEachOther) {
  if (std::system("timeout 10 srun -n 2 -N 1 --overcommit true > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no SLURM that runs";
  }
  train_under("srun", {"-n", "2", "-N", "1", "--overcommit"});
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
  EXPECT_THAT(outcome.err, HasSubstr("samples seen; read in "));
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

}  // namespace ranks_test
}  // namespace kinora::apps
