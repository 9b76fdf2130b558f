#include "kinora/comm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "kinora/core/error.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace world_test {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

World world_of(const Variables& variables) {
  return world_from_environment([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// "rank/size local_rank/local_size host:port prefix", with "hosted" if the store is.
std::string text_of(const World& world) {
  return std::to_string(world.rank) + "/" + std::to_string(world.size) + " " +
         std::to_string(world.local_rank) + "/" + std::to_string(world.local_size) + " " +
         world.store_host + ":" + std::to_string(world.store_port) +
         (world.store_is_hosted ? " hosted " : "") + world.store_prefix;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "a"},
                             {"MASTER_PORT", "1234"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                          {"SLURM_NODELIST", "gpu[07-08]"},
                          {"SLURM_JOB_ID", "1230042"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(WorldTest, ReadsEachLaunchersVariables) {
  EXPECT_EQ(text_of(world_of(kTorchrun)), "5/8 1/0 a:1234");
  EXPECT_EQ(text_of(world_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "4"))), "5/8 1/4 a:1234");
  Variables elastic = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(text_of(world_of(elastic)), "5/8 1/0 a:1234 hosted attempt0");
  EXPECT_EQ(text_of(world_of(with(elastic, "TORCHELASTIC_RESTART_COUNT", "2"))),
            "5/8 1/0 a:1234 hosted attempt2");
  EXPECT_EQ(world_of(with(elastic, "TORCHELASTIC_RESTART_COUNT", "2")).restart, 2);
  elastic["KINORA_RESTART"] = "1";
  EXPECT_EQ(text_of(world_of(with(elastic, "TORCHELASTIC_RESTART_COUNT", "2"))),
            "5/8 1/0 a:1234 hosted attempt1");
  EXPECT_EQ(text_of(world_of(kOpenMpi)), "2/4 2/4 127.0.0.1:29500");
  EXPECT_EQ(text_of(world_of(with(kOpenMpi, "MASTER_PORT", "77"))), "2/4 2/4 127.0.0.1:77");
  EXPECT_EQ(text_of(world_of(kSlurm)), "5/7 1/3 gpu07:20042");
  EXPECT_EQ(text_of(world_of(with(kSlurm, "SLURM_STEP_NODELIST", "gpu08"))), "5/7 1/3 gpu08:20042");
  EXPECT_EQ(text_of(world_of(with(kSlurm, "MASTER_ADDR", "b"))), "5/7 1/3 b:20042");
  EXPECT_EQ(text_of(world_of(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", ""))),
            "5/7 1/0 gpu07:20042");
}

TEST(WorldTest, IsOneProcessWithoutLauncher) {
  EXPECT_EQ(text_of(world_of({})), "0/1 0/1 :0");
  EXPECT_EQ(text_of(world_of({{"SLURM_NTASKS", "8"}, {"MASTER_PORT", "9"}, {"RANK", ""}})),
            "0/1 0/1 :0");
}

TEST(WorldTest, TakesTheInnermostLauncher) {
  Variables variables = kSlurm;
  variables.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(world_of(variables).size, 4);
  variables.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(world_of(variables).size, 8);
}

TEST(WorldTest, NamesWhatIsMissing) {
  for (const Variables& launcher : {kTorchrun, kOpenMpi}) {
    for (const auto& [name, value] : launcher) {
      Variables variables = launcher;
      variables.erase(name);
      EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return world_of(variables); }),
                  HasSubstr(name));
    }
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODELIST"}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return world_of(with(kSlurm, name, "")); }),
                HasSubstr(name));
  }
}

TEST(WorldTest, NamesWhatContradicts) {
  const std::tuple<Variables, const char*, const char*, const char*> cases[] = {
      {kTorchrun, "RANK", "8", "RANK must be less than WORLD_SIZE (8), got 8"},
      {kTorchrun, "RANK", "-1", "RANK must be a whole number from 0, got \"-1\""},
      {kTorchrun, "RANK", "1x", "RANK must be a whole number from 0, got \"1x\""},
      {kTorchrun, "WORLD_SIZE", "0", "WORLD_SIZE must be at least 1"},
      {kTorchrun, "LOCAL_RANK", "6", "LOCAL_RANK must not exceed RANK (5), got 6"},
      {kTorchrun, "LOCAL_WORLD_SIZE", "1", "LOCAL_RANK must be less than LOCAL_WORLD_SIZE (1)"},
      {kTorchrun, "LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE must not exceed WORLD_SIZE (8)"},
      {kTorchrun, "MASTER_PORT", "70000", "MASTER_PORT must be 1 to 65535, got 70000"},
      {kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "3", "MASTER_ADDR must name the host of rank 0"},
      {kSlurm, "SLURM_NODEID", "2", "SLURM_NODEID is 2"},
      {kSlurm, "SLURM_STEP_TASKS_PER_NODE", "4(x", "SLURM's tasks per node"},
      {kSlurm, "SLURM_NODELIST", "gpu[", "']'"},
  };
  for (const auto& [launcher, name, value, expected] : cases) {
    const Variables variables = with(launcher, name, value);
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return world_of(variables); }),
                HasSubstr(expected));
  }
}

TEST(WorldTest, ChecksAnExplicitOne) {
  World world;
  EXPECT_NO_THROW(check_world(world));
  world.size = 2;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return check_world(world), 0; }),
              HasSubstr("store_host"));
  world.rank = -1;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return check_world(world), 0; }),
              HasSubstr("rank -1"));
}

TEST(WorldTest, ParsesSlurmsLists) {
  EXPECT_EQ(first_slurm_host("login"), "login");
  EXPECT_EQ(first_slurm_host("a1,a2"), "a1");
  EXPECT_EQ(first_slurm_host("node[08-11,20],login"), "node08");
  EXPECT_EQ(first_slurm_host("n[3,5]"), "n3");
  EXPECT_EQ(first_slurm_host("rack[1-2]node[03-04]-ib,x"), "rack1node03-ib");
  for (const char* wrong : {"", ",a", "a[", "a[]", "a[x]", "a]"}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return first_slurm_host(wrong); }),
                HasSubstr("list of nodes"));
  }
  EXPECT_EQ(slurm_tasks_per_node("4(x2),3"), (std::vector<int64_t>{4, 4, 3}));
  EXPECT_EQ(slurm_tasks_per_node("8"), (std::vector<int64_t>{8}));
  for (const char* wrong : {"", "4(x)", "4(x2", "(x2)", "4,", "4(x99999999)"}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return slurm_tasks_per_node(wrong); }),
                HasSubstr("tasks per node"));
  }
}

}  // namespace world_test
}  // namespace kinora::comm
