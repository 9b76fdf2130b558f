#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/ops/orthogonal.h"
#include "kinora/ops/random.h"
#include "kinora/optim/optimizer.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/optim/model.h"
#include "tests/optim/odd_run.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::optim {
namespace published_rules_test {

using kernels::MasterFormat;
using kernels::MomentFormat;
using kernels::UpdateRule;
using nlohmann::json;
using testing::HasSubstr;

/// What the published program of a rule does.
const json& fixture(UpdateRule rule) {
  static std::map<UpdateRule, json> fixtures;
  if (const auto known = fixtures.find(rule); known != fixtures.end()) {
    return known->second;
  }
  std::ifstream file(source_path("tests/optim/data/" + std::string(to_string(rule)) + ".json"));
  return fixtures.emplace(rule, json::parse(file)).first->second;
}

/// The parameters of the fixture, in a bucket for the embedder and one for the block.
struct RuleRun {
  explicit RuleRun(UpdateRule rule, ArenaOptions options = {})
      : data(fixture(rule)), arena(make_arena(rule, std::move(options))) {
    for (const auto& [path, shape] : data["shapes"].items()) {
      arena.load_parameter(path, value_of(data["initial"], path));
    }
    arena.reset_averages();
  }

  [[nodiscard]] at::Tensor value_of(const json& values, const std::string& path) const {
    const std::vector<int64_t> shape = data["shapes"][path];
    return at::tensor(values[path].get<std::vector<float>>()).view(shape);
  }

  [[nodiscard]] static OptimizerConfig config(UpdateRule rule) {
    OptimizerConfig config;
    config.rule = rule;
    config.weight_decay = fixture(rule)["weight_decay"];
    config.max_grad_norm = fixture(rule)["max_grad_norm"];
    config.d0 = fixture(rule).value("d0", config.d0);
    config.d_coef = fixture(rule).value("d_coef", config.d_coef);
    return config;
  }

  void set_gradients(const json& step) const {
    for (const nn::NamedParameter& named : parameters.named()) {
      named.parameter->grad.copy_(value_of(step["grads"], named.path));
    }
  }

  void set_gradients(uint32_t step) const {
    for (size_t i = 0; i < parameters.named().size(); ++i) {
      ops::random_fill(parameters.named()[i].parameter->grad, {3, i, step, RandomPurpose::kTest},
                       kernels::Distribution::kNormal, 0.1);
    }
  }

  /// `tolerance` is relative to the largest element of each tensor.
  void expect_close(const json& expected, Role role, double tolerance) const {
    for (const auto& [path, values] : expected.items()) {
      const at::Tensor want = at::tensor(values.get<std::vector<float>>());
      const at::Tensor got = arena.own_part(path, role).values;
      EXPECT_LE((got - want).abs().max().item<double>(),
                tolerance * want.abs().max().item<double>())
          << to_string(role) << " of " << path;
    }
  }

  const json& data;
  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena(UpdateRule rule, ArenaOptions options) {
    nn::BucketSpec embedders{"embedders", {}, true};
    nn::BucketSpec block{"block", {}, false, "blocks", true};
    for (const auto& [path, shape] : data["shapes"].items()) {
      const bool is_island = path.starts_with("embedder");
      nn::Parameter& parameter =
          parameters.add(path, shape.get<std::vector<int64_t>>(), nn::Init::zero(), is_island);
      parameter.lr_factor = data["lr_factors"].value(path, 1.0);
      (is_island ? embedders : block).parameters.push_back(path);
    }
    options.rule = rule;
    options.ema_decays = {data["ema"]};
    return Arena(parameters.named(), {embedders, block}, options);
  }
};

class WholeRuleTest : public testing::TestWithParam<std::tuple<UpdateRule, MasterFormat>> {
 protected:
  [[nodiscard]] static UpdateRule rule() { return std::get<0>(GetParam()); }
  [[nodiscard]] static ArenaOptions options() {
    ArenaOptions options;
    options.compute_type = at::kBFloat16;
    options.masters = std::get<1>(GetParam());
    return options;
  }
  [[nodiscard]] static OptimizerConfig config() {
    OptimizerConfig config = RuleRun::config(rule());
    config.masters = std::get<1>(GetParam());
    config.max_grad_norm = 0.0;  // the norm is summed in the order of the slices
    return config;
  }
};

void expect_published_steps(UpdateRule rule, bool own_kernels) {
  RuleRun run(rule);
  Optimizer optimizer(RuleRun::config(rule), run.arena, own_kernels);
  for (const json& step : run.data["steps"]) {
    run.set_gradients(step);
    const StepResult result =
        optimizer.step(run.arena, step.value("lr", run.data["lr"].get<double>()));
    EXPECT_NEAR(result.distance, step.value("distance", 0.0),
                tolerance::kFewRoundings * result.distance);
    if (step.contains("weights")) {
      run.expect_close(step["weights"], Role::master(), tolerance::kFewRoundings);
    }
  }
  size_t compared = 0;
  for (const Role role : {Role::exp_avg(), Role::exp_avg_sq(), Role::factors(), Role::instability(),
                          Role::grad_sum(), Role::base()}) {
    if (run.data["state"].contains(to_string(role))) {
      run.expect_close(run.data["state"][to_string(role)], role, tolerance::kFewRoundings);
      ++compared;
    }
  }
  EXPECT_EQ(compared, run.data["state"].size());
  size_t average = 0;
  if (run.data.contains("evaluated")) {
    run.expect_close(run.data["evaluated"], Role::average(average++), tolerance::kFewRoundings);
  }
  run.expect_close(run.data["averages"], Role::average(average), tolerance::kFewRoundings);
  if (run.data.contains("in_bf16")) {  // of products in bf16, by which weights moved 0.026
    run.expect_close(run.data["in_bf16"], Role::master(), 3e-4);
  }
}

class PublishedRuleTest : public testing::TestWithParam<UpdateRule> {};

TEST_P(PublishedRuleTest, ItsStepsAreItsOwn) {
  expect_published_steps(GetParam(), /*own_kernels=*/true);
}

INSTANTIATE_TEST_SUITE_P(Rules, PublishedRuleTest,
                         testing::Values(UpdateRule::kMuon, UpdateRule::kAdafactor,
                                         UpdateRule::kCame, UpdateRule::kLamb, UpdateRule::kProdigy,
                                         UpdateRule::kScheduleFree),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(MuonTest, MatricesHaveNoSecondMoment) {
  const RuleRun run(UpdateRule::kMuon);
  const Bucket& embedders = run.arena.buckets()[0];
  EXPECT_EQ(embedders.exp_avg_sq.numel(), embedders.numel);
  const Bucket& block = run.arena.buckets()[1];
  EXPECT_EQ(block.exp_avg.numel(), block.numel);
  int64_t of_matrices = 0;
  for (size_t k = 0; k < block.slots.size(); ++k) {
    const Slot& slot = block.slots[k];
    const bool is_matrix = slot.shape.size() > 1;
    EXPECT_EQ(slot.is_matrix, is_matrix) << slot.path;
    const int64_t end = k + 1 < block.slots.size() ? block.slots[k + 1].offset : block.numel;
    of_matrices += is_matrix ? end - slot.offset : 0;
    EXPECT_EQ(run.arena.own_part(slot.path, Role::exp_avg_sq()).values.numel(),
              is_matrix ? 0 : slot.numel);
  }
  EXPECT_EQ(block.exp_avg_sq.numel(), block.numel - of_matrices);
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [&] { (void)run.arena.export_parameter("block.tall.weight", Role::exp_avg_sq()); }),
      HasSubstr("block.tall.weight has no array exp_avg_sq"));
}

TEST(MuonTest, DirectionsAreOrthogonal) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{40, 90}, {90, 40}, {33, 33}}) {
    at::Tensor matrix = at::empty(shape);
    ops::random_fill(matrix, {1, 1, 1, RandomPurpose::kTest}, kernels::Distribution::kNormal, 5.0);
    const at::Tensor before = matrix.clone();
    const at::Tensor values = at::linalg_svdvals(ops::orthogonal(matrix));
    EXPECT_LE(values.max().item<double>(), 1.3);
    EXPECT_GE(values.min().item<double>(), shape[0] == shape[1] ? 0.0 : 0.5);
    EXPECT_TRUE(at::equal(matrix, before));
  }
  EXPECT_EQ(ops::orthogonal(at::zeros({3, 4})).abs().max().item<double>(), 0.0);
}

TEST(AdafactorTest, MatricesKeepTheirRowsAndColumns) {
  const RuleRun run(UpdateRule::kAdafactor);
  const Bucket& block = run.arena.buckets()[1];
  EXPECT_FALSE(block.exp_avg.defined());
  EXPECT_FALSE(block.exp_avg_sq.defined());
  EXPECT_EQ(block.factors.numel(), (12 + 20) + 12 + (30 + 8) + (6 + 36) + 8);
  EXPECT_EQ(run.arena.bytes(Role::factors()), 4 * (block.factors.numel() + 5 + 7));
}

// Decay is a factor here, which is rounded the same way in each step.
TEST(CameTest, FiftyStepsWithoutDecayAreWithinAMillionth) {
  RuleRun run(UpdateRule::kCame);
  ASSERT_EQ(run.data["steps"].size(), 50U);
  OptimizerConfig config = RuleRun::config(UpdateRule::kCame);
  config.weight_decay = 0.0;
  Optimizer optimizer(config, run.arena);
  for (const json& step : run.data["steps"]) {
    run.set_gradients(step);
    optimizer.step(run.arena, run.data["lr"]);
  }
  run.expect_close(run.data["without_decay"], Role::master(), tolerance::kStored);
}

TEST(CameTest, MatricesKeepTheirRowsAndColumnsTwiceAndAMoment) {
  const RuleRun run(UpdateRule::kCame);
  const Bucket& block = run.arena.buckets()[1];
  EXPECT_EQ(block.exp_avg.numel(), block.numel);
  EXPECT_FALSE(block.exp_avg_sq.defined());
  EXPECT_EQ(block.factors.numel(), (12 + 20) + 12 + (30 + 8) + (6 + 36) + 8);
  EXPECT_EQ(block.instability.numel(), (12 + 20) + (30 + 8) + (6 + 36));
  EXPECT_EQ(run.arena.own_part("block.norm.weight", Role::instability()).values.numel(), 0);
}

/// The state of a parameter, of all roles: to the bit, or within so much of the largest element.
void expect_same_part(const Arena& whole, const Arena& part, const std::string& path,
                      double tolerance = 0.0) {
  for (const Role role : whole.state_roles()) {
    const Arena::Part got = part.own_part(path, role);
    if (got.values.numel() == 0) {
      continue;
    }
    const at::Tensor all = whole.own_part(path, role).values.to(at::kFloat);
    const at::Tensor want = all.narrow(0, got.begin, got.values.numel());
    EXPECT_LE(got.values.sub(want).abs().max().item<double>(),
              tolerance * all.abs().max().item<double>())
        << to_string(role) << " of " << path;
  }
}

/// As a reduction leaves them.
void give_gradients(const Arena& whole, const Arena& divided) {
  for (const Bucket& bucket : divided.buckets()) {
    for (const Slot& slot : bucket.slots) {
      const Arena::Part grad = divided.own_part(slot.path, Role::grad());
      grad.values.copy_(whole.own_part(slot.path, Role::grad())
                            .values.narrow(0, grad.begin, grad.values.numel()));
    }
  }
}

TEST_P(WholeRuleTest, RanksThatDivideStateChangeNothing) {
  for (const int ranks : {2, 4}) {
    comm::run_on_ranks(ranks, [](const comm::Group& world) {
      for (const int stage : {1, 2, 3}) {
        RuleRun whole(rule(), options());
        ArenaOptions divided_options = options();
        divided_options.sharding = {.group = world, .stage = stage};
        RuleRun divided(rule(), divided_options);
        Optimizer optimizer(config(), whole.arena);
        Optimizer of_slices(config(), divided.arena);
        for (uint32_t step = 0; step < 3; ++step) {
          whole.set_gradients(step);
          give_gradients(whole.arena, divided.arena);
          optimizer.step(whole.arena, 0.01);
          of_slices.step(divided.arena, 0.01);
        }
        for (const nn::NamedParameter& named : whole.parameters.named()) {
          // Norms and means are sums over slices; roundings tip weights in bf16 to a neighbour.
          const bool tips = std::get<1>(GetParam()) == MasterFormat::kBF16;
          const bool takes_exact_sums =
              rule() == UpdateRule::kMuon || rule() == UpdateRule::kScheduleFree;
          const double sums = tips ? 1.0 / 128 : tolerance::kFewRoundings;
          expect_same_part(whole.arena, divided.arena, named.path, takes_exact_sums ? 0.0 : sums);
        }
      }
    });
  }
}

class FactoredRuleTest : public testing::TestWithParam<UpdateRule> {};

TEST_P(FactoredRuleTest, ItsComposedStepsAreThePublishedOnes) {
  expect_published_steps(GetParam(), /*own_kernels=*/false);
}

TEST_P(FactoredRuleTest, KernelsEqualTheComposedCallsOnOddSizes) {
  comm::run_on_ranks(2, [rule = GetParam()](const comm::Group& world) {
    const OptimizerConfig config{.rule = rule, .weight_decay = 0.1};
    const auto options = [rule](const Sharding& sharding) {
      ArenaOptions result;
      result.rule = rule;
      result.sharding = sharding;
      return result;
    };
    OddRun want(options({}));
    Optimizer of_want(config, want.arena, /*own_kernels=*/false);
    OddRun whole(options({}));
    OddRun divided(options({.group = world, .stage = 1}));
    OddRun composed(options({.group = world, .stage = 1}));
    Optimizer of_whole(config, whole.arena);
    Optimizer of_divided(config, divided.arena);
    Optimizer of_composed(config, composed.arena, /*own_kernels=*/false);
    for (uint32_t step = 0; step < 3; ++step) {
      want.set_gradients(step);
      for (const OddRun* run : {&whole, &divided, &composed}) {
        give_gradients(want.arena, run->arena);
      }
      of_want.step(want.arena, 0.01);
      of_whole.step(whole.arena, 0.01);
      of_divided.step(divided.arena, 0.01);
      of_composed.step(composed.arena, 0.01);
    }
    for (const nn::NamedParameter& named : want.parameters.named()) {
      for (const OddRun* run : {&whole, &divided, &composed}) {
        expect_same_part(want.arena, run->arena, named.path, tolerance::kFewRoundings);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Rules, FactoredRuleTest,
                         testing::Values(UpdateRule::kAdafactor, UpdateRule::kCame),
                         [](const auto& info) { return std::string(to_string(info.param)); });

/// Three steps of both, from number `first` on, on the same gradients, leave the same bits.
void expect_same_steps(RuleRun& a, Optimizer& of_a, RuleRun& b, Optimizer& of_b, uint32_t first) {
  for (uint32_t step = first; step < first + 3; ++step) {
    a.set_gradients(step);
    b.set_gradients(step);
    of_a.step(a.arena, 0.01);
    of_b.step(b.arena, 0.01);
  }
  for (const nn::NamedParameter& named : a.parameters.named()) {
    expect_same_part(a.arena, b.arena, named.path);
  }
}

TEST_P(WholeRuleTest, ARestoredRunGoesOnWithTheSameBits) {
  RuleRun whole(rule(), options());
  RuleRun resumed(rule(), options());
  Optimizer first(config(), whole.arena);
  for (uint32_t step = 0; step < 3; ++step) {
    whole.set_gradients(step);
    first.step(whole.arena, 0.01);
  }
  for (const nn::NamedParameter& named : whole.parameters.named()) {
    for (const Role role : whole.arena.state_roles()) {  // without padding, as in checkpoints
      resumed.arena.own_part(named.path, role)
          .values.copy_(whole.arena.own_part(named.path, role).values);
    }
  }
  resumed.arena.refresh_compute();
  Optimizer second(config(), resumed.arena);
  second.restore(first.state());
  EXPECT_EQ(second.state().rule, rule());
  expect_same_steps(whole, first, resumed, second, 3);
}

std::string name_of(const testing::TestParamInfo<std::tuple<UpdateRule, MasterFormat>>& info) {
  return std::string(to_string(std::get<0>(info.param))) + "_" + to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Rules, WholeRuleTest,
                         testing::Combine(testing::Values(UpdateRule::kMuon, UpdateRule::kAdafactor,
                                                          UpdateRule::kCame, UpdateRule::kLamb,
                                                          UpdateRule::kProdigy,
                                                          UpdateRule::kScheduleFree),
                                          testing::Values(MasterFormat::kF32, MasterFormat::kBF16)),
                         name_of);

TEST_P(PublishedRuleTest, ASkippedStepLeavesEverythingButGradients) {
  RuleRun run(GetParam());
  const RuleRun untouched(GetParam());
  Optimizer optimizer(RuleRun::config(GetParam()), run.arena);
  run.set_gradients(0);
  run.arena.buckets()[1].grad[7] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(optimizer.step(run.arena, 0.01).skipped);
  for (const nn::NamedParameter& named : run.parameters.named()) {
    expect_same_part(untouched.arena, run.arena, named.path);
  }
  EXPECT_EQ(run.arena.buckets()[1].grad.count_nonzero().item<int64_t>(), 0);
}

class TwoPassRuleTest : public testing::TestWithParam<UpdateRule> {};

TEST_P(TwoPassRuleTest, TheComposedPassesEqualTheFusedOnes) {
  RuleRun fused(GetParam());
  RuleRun composed(GetParam());
  kernels::UpdateParameters parameters;
  parameters.rule = GetParam();
  parameters.weight_decay = 0.1;
  parameters.num_emas = 1;
  parameters.ema_decay[0] = 0.9;
  kernels::StepControl start;
  start.lr = 0.01;
  start.multiplier = 0.5F;
  start.step_distance = 0.25;
  start.distance = 0.5;
  const at::Tensor control = ops::make_step_control(start, at::kCPU);
  for (const RuleRun* run : {&fused, &composed}) {
    run->set_gradients(0);
    const Bucket& bucket = run->arena.buckets()[1];
    const at::Tensor second =
        kernels::has_second_moment(GetParam()) ? bucket.exp_avg_sq : at::Tensor();
    const ops::OptimizerBucket tensors{.master = bucket.master,
                                       .grad = bucket.grad,
                                       .exp_avg = bucket.exp_avg,
                                       .exp_avg_sq = second,
                                       .ema = bucket.ema,
                                       .compute = {},
                                       .base = bucket.base,
                                       .grad_sum = bucket.grad_sum};
    if (run == &fused) {
      const ops::BucketTable table({tensors});
      ops::make_directions(table, parameters, control);
      ops::update_weights(table, parameters, control);
    } else {
      ops::make_directions_composed(tensors, parameters, control);
      ops::update_weights_composed(tensors, parameters, control);
    }
  }
  for (const Role role : {Role::master(), Role::exp_avg(), Role::average(0)}) {
    const at::Tensor want = composed.arena.buckets()[1].tensor(role);
    const at::Tensor got = fused.arena.buckets()[1].tensor(role);
    EXPECT_LE((got - want).abs().max().item<double>(),
              tolerance::kFewRoundings * want.abs().max().item<double>())
        << to_string(role);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, TwoPassRuleTest,
                         testing::Values(UpdateRule::kMuon, UpdateRule::kLamb,
                                         UpdateRule::kProdigy),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(WholeRuleOffloadTest, OffloadedWeightsFollowTheSameDirections) {
  for (const UpdateRule rule : {UpdateRule::kAdafactor, UpdateRule::kScheduleFree}) {
    ArenaOptions options;
    options.compute_type = at::kBFloat16;
    RuleRun near(rule, options);
    options.offload = 1.0;
    RuleRun far(rule, options);
    EXPECT_TRUE(far.arena.buckets()[1].is_offloaded);
    const OptimizerConfig config = RuleRun::config(rule);
    Optimizer of_near(config, near.arena);
    Optimizer of_far(config, far.arena);
    expect_same_steps(near, of_near, far, of_far, 0);
  }
}

TEST(ScheduleFreeTest, ItsMeanIsOneOfFourAverages) {
  TestParameters parameters;
  parameters.add("weight", {4});
  ArenaOptions options;
  options.rule = UpdateRule::kScheduleFree;
  options.ema_decays = {0.1, 0.2, 0.3, 0.4};
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [&] { const Arena arena(parameters.named(), parameters.one_bucket(), options); }),
      HasSubstr("at most 4 EMAs can be kept, got 5 with schedule_free's mean"));
}

TEST(ScheduleFreeTest, TheComposedPassEqualsTheFusedOne) {
  RuleRun fused(UpdateRule::kScheduleFree);
  RuleRun composed(UpdateRule::kScheduleFree);
  fused.set_gradients(0);
  composed.set_gradients(0);
  const Bucket& bucket = composed.arena.buckets()[1];
  kernels::UpdateParameters parameters;
  parameters.rule = UpdateRule::kScheduleFree;
  parameters.weight_decay = 0.1;
  parameters.num_emas = 2;
  parameters.ema_decay[1] = 0.9;
  kernels::StepControl start;
  start.lr = 0.01;
  start.share = 0.25;
  const at::Tensor control = ops::make_step_control(start, at::kCPU);
  for (const RuleRun* run : {&fused, &composed}) {
    const Bucket& its = run->arena.buckets()[1];
    const ops::OptimizerBucket tensors{.master = its.master,
                                       .grad = its.grad,
                                       .exp_avg = {},
                                       .exp_avg_sq = its.exp_avg_sq,
                                       .ema = its.ema,
                                       .compute = {},
                                       .base = its.base};
    if (run == &fused) {
      ops::update_weights(ops::BucketTable({tensors}), parameters, control);
    } else {
      ops::update_weights_composed(tensors, parameters, control);
    }
  }
  for (const Role role : composed.arena.state_roles()) {
    const at::Tensor want = bucket.tensor(role);
    const at::Tensor got = fused.arena.buckets()[1].tensor(role);
    EXPECT_LE((got - want).abs().max().item<double>(),
              tolerance::kFewRoundings * want.abs().max().item<double>())
        << to_string(role);
  }
}

TEST(WholeRuleErrorTest, WhatTheyCannotDoIsRefused) {
  const auto message = [](UpdateRule rule, const ArenaOptions& options) {
    return error_of(ErrorKind::kConfig, [&] { const RuleRun run(rule, options); });
  };
  ArenaOptions coded;
  coded.moments = MomentFormat::k8Bit;
  for (const UpdateRule rule :
       {UpdateRule::kMuon, UpdateRule::kCame, UpdateRule::kLamb, UpdateRule::kProdigy}) {
    EXPECT_THAT(message(rule, coded),
                HasSubstr(std::string(to_string(rule)) + " keeps its moments in fp32"));
  }
  EXPECT_THAT(message(UpdateRule::kAdafactor, coded), HasSubstr("adafactor has no moments"));
  EXPECT_THAT(message(UpdateRule::kScheduleFree, coded), HasSubstr("schedule_free keeps weights"));
  ArenaOptions far;
  far.offload = 0.5;
  for (const UpdateRule rule :
       {UpdateRule::kMuon, UpdateRule::kCame, UpdateRule::kLamb, UpdateRule::kProdigy}) {
    EXPECT_THAT(message(rule, far),
                HasSubstr(std::string(to_string(rule)) + " keeps its state on the device"));
  }
  const RuleRun run(UpdateRule::kMuon);
  OptimizerConfig config = RuleRun::config(UpdateRule::kMuon);
  config.momentum = 1.0;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { const Optimizer optimizer(config, run.arena); }),
              HasSubstr("betas must be in [0, 1), got 1"));
}

}  // namespace published_rules_test
}  // namespace kinora::optim
