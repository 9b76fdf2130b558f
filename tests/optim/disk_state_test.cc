// State in a file: the bits of state in memory, whatever the rule, the formats and the ranks.

#include "kinora/optim/disk_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/ops/random.h"
#include "kinora/optim/optimizer.h"
#include "tests/optim/model.h"

namespace kinora::optim {
namespace disk_state_test {

namespace fs = std::filesystem;

/// Blocks of several pieces and of less than one, and an embedder that stays in memory.
struct Trial {
  Trial(ArenaOptions wanted, const OptimizerConfig& wanted_config)
      : config(wanted_config), arena(make_arena(std::move(wanted))), optimizer(config, arena) {}

  void step(uint32_t number) {
    for (size_t i = 0; i < parameters.named().size(); ++i) {
      const at::Tensor& grad = parameters.named()[i].parameter->grad;
      ops::random_fill(grad, {3, i, number, RandomPurpose::kTest}, kernels::Distribution::kNormal,
                       0.1);
    }
    if (number == 2) {
      parameters.named()[0].parameter->grad.fill_(std::numeric_limits<float>::infinity());
    }
    (void)optimizer.step(arena, 0.01);
  }

  TestParameters parameters;
  OptimizerConfig config;
  Arena arena;
  Optimizer optimizer;

 private:
  Arena make_arena(ArenaOptions options) {
    parameters.add("embed.weight", {300, 5}, nn::Init::normal(0.5), true);
    parameters.add("big.weight", {1'700, 1'301});
    parameters.add("big.bias", {1'301}).lr_factor = 0.5;
    std::vector<nn::BucketSpec> buckets = {{"embed", {"embed.weight"}, true},
                                           {"big", {"big.weight", "big.bias"}, false, "blocks"}};
    for (int i = 0; i < 6; ++i) {
      const std::string name = "block" + std::to_string(i);
      parameters.add(name + ".weight", {129, 33 + i});
      parameters.add(name + ".bias", {7}).lr_factor = 2.0;
      buckets.push_back({name, {name + ".weight", name + ".bias"}, false, "blocks"});
    }
    options.rule = config.rule;
    options.moments = config.moments;
    options.masters = config.masters;
    options.offload = config.offload;
    options.disk = config.disk;
    return Arena(parameters.named(), buckets, options);
  }
};

void expect_same_state(const Trial& near, const Trial& far) {
  for (size_t i = 0; i < near.arena.buckets().size(); ++i) {
    for (const Role role : near.arena.state_roles()) {
      EXPECT_TRUE(at::equal(near.arena.buckets()[i].tensor(role),
                            far.arena.fetched(far.arena.buckets()[i].tensor(role))))
          << to_string(role) << " of bucket " << i;
    }
    EXPECT_TRUE(
        at::equal(near.arena.buckets()[i].whole_compute, far.arena.buckets()[i].whole_compute));
  }
}

struct Case {
  const char* name;
  at::ScalarType type;
  OptimizerConfig config;
  size_t num_averages = 1;
};

class DiskStateTest : public testing::TestWithParam<Case> {};

TEST_P(DiskStateTest, GivesTheBitsOfMemory) {
  for (const double share : {0.4, 1.0}) {
    ArenaOptions options;
    options.compute_type = GetParam().type;
    options.ema_decays.assign(GetParam().num_averages, 0.9);
    OptimizerConfig config = GetParam().config;
    config.weight_decay = 0.1;
    config.max_grad_norm = 1.0;
    Trial near(options, config);
    config.offload = share;
    config.disk = testing::TempDir();
    Trial far(options, config);
    ASSERT_NE(far.arena.disk(), nullptr);
    EXPECT_EQ(far.arena.disk()->size(), far.arena.disk_bytes());
    int64_t bytes = 0;
    for (const Role role : far.arena.state_roles()) {
      bytes += far.arena.offloaded_bytes(role);
    }
    EXPECT_LE(bytes, far.arena.disk_bytes());
    EXPECT_GT(bytes, far.arena.disk_bytes() * 8 / 10) << "whole pages";
    expect_same_state(near, far);
    for (uint32_t step = 0; step < 5; ++step) {
      near.step(step);
      far.step(step);
      if (step == 3) {  // between steps, when the next pieces have been read
        const at::Tensor weight = at::full({129, 35}, 0.25);
        for (Trial* run : {&near, &far}) {
          run->arena.load_parameter("block2.weight", weight);
          run->arena.reset_averages();
        }
      }
      expect_same_state(near, far);
    }
    for (const char* path : {"big.weight", "big.bias", "block5.weight", "embed.weight"}) {
      for (const Role role : {Role::master(), Role::compute()}) {
        EXPECT_TRUE(at::equal(near.arena.export_parameter(path, role),
                              far.arena.export_parameter(path, role)));
      }
    }
    if (GetParam().num_averages > 0) {
      {
        const BoundWeights of_near = near.arena.bind(WeightSet::average(0));
        const BoundWeights of_far = far.arena.bind(WeightSet::average(0));
        for (size_t i = 0; i < near.parameters.named().size(); ++i) {
          EXPECT_TRUE(at::equal(near.parameters.named()[i].parameter->value,
                                far.parameters.named()[i].parameter->value));
        }
      }
      expect_same_state(near, far);
    }
    EXPECT_NE(far.arena.disk()->measure().find("GB/s"), std::string::npos);
    expect_same_state(near, far);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, DiskStateTest,
    testing::Values(
        Case{"adamw_fp32", at::kFloat, {}}, Case{"adamw_bf16", at::kBFloat16, {}, 2},
        Case{"no_average", at::kBFloat16, {}, 0}, Case{"adamw_fp16", at::kHalf, {}},
        Case{"lion_bf16", at::kBFloat16, {.rule = kernels::UpdateRule::kLion}},
        Case{"sgd_fp32", at::kFloat, {.rule = kernels::UpdateRule::kSgd}},
        Case{"adafactor_bf16", at::kBFloat16, {.rule = kernels::UpdateRule::kAdafactor}},
        Case{"coded", at::kBFloat16, {.moments = kernels::MomentFormat::k8Bit}},
        Case{"small",
             at::kBFloat16,
             {.moments = kernels::MomentFormat::k8Bit, .masters = kernels::MasterFormat::kBF16}}),
    [](const auto& info) { return info.param.name; });

/// The first file without a name in the folder.
fs::path deleted_file_in(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string target = fs::read_symlink(entry.path(), none).string();
    if (target.starts_with(fs::canonical(folder).string()) && target.ends_with("(deleted)")) {
      return entry.path();
    }
  }
  return {};
}

TEST(DiskStateErrorTest, ADiskThatFailsEndsTheStep) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("kinora-disk-" + std::to_string(getpid()));
  fs::create_directory(folder);
  {
    OptimizerConfig config;
    config.offload = 1.0;
    config.disk = folder.string();
    ArenaOptions options;
    options.compute_type = at::kBFloat16;
    Trial run(options, config);
    run.step(0);
    (void)run.arena.export_parameter("big.weight", Role::master());  // after what is under way
    ASSERT_EQ(::truncate(deleted_file_in(folder).c_str(), 0), 0);
    const auto steps = [&run] {
      for (uint32_t step = 3; step < 6; ++step) {  // what is in memory already serves one
        run.step(step);
      }
    };
    try {
      steps();
      FAIL() << "the disk is gone";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find(folder.string()), std::string::npos) << error.what();
    }
    EXPECT_THROW((void)run.arena.export_parameter("big.weight", Role::master()), Error);
  }
  fs::remove_all(folder);
}

TEST(DiskStateErrorTest, ImpossibleOptionsAreRefused) {
  OptimizerConfig config;
  config.disk = testing::TempDir();
  EXPECT_THROW(Trial({}, config), Error) << "nothing is offloaded";
  config.offload = 1.0;
  config.disk = "/no/such/folder";
  EXPECT_THROW(Trial({}, config), Error);
  config.disk = testing::TempDir();
  config.rule = kernels::UpdateRule::kMuon;
  EXPECT_THROW(Trial({}, config), Error);
  config.rule = kernels::UpdateRule::kScheduleFree;
  EXPECT_THROW(Trial({}, config), Error);
}

}  // namespace disk_state_test
}  // namespace kinora::optim
