#include "kinora/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/ops/random.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/optim/model.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::optim {
namespace optimizer_test {

using kernels::MasterFormat;
using kernels::MomentFormat;
using kernels::UpdateRule;
using nlohmann::json;
using testing::HasSubstr;

const json& fixture() {
  static const json kFixture = [] {
    std::ifstream file(source_path("tests/optim/data/optimizers.json"));
    return json::parse(file);
  }();
  return kFixture;
}

at::Tensor tensor_of(const json& values) {
  std::vector<float> result;
  for (const json& value : values) {
    result.push_back(value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>());
  }
  return at::tensor(result);
}

std::string path_of(size_t index) {
  return "p" + std::to_string(index);
}

/// The parameters of a case of the fixture in an arena of two buckets, at their initial values.
struct FixtureRun {
  explicit FixtureRun(const json& data, UpdateRule rule = UpdateRule::kAdamW,
                      MomentFormat moments = MomentFormat::kF32)
      : data(data), rule(rule), arena(make_arena(moments)) {
    for (size_t i = 0; i < size(); ++i) {
      arena.load_parameter(path_of(i), tensor_of(data["initial"][i]).view(shape(i)));
    }
    arena.reset_averages();
  }

  [[nodiscard]] size_t size() const { return data["shapes"].size(); }
  [[nodiscard]] std::vector<int64_t> shape(size_t i) const { return data["shapes"][i]; }

  void set_gradients(const json& step) {
    for (size_t i = 0; i < size(); ++i) {
      parameters.named()[i].parameter->grad.copy_(tensor_of(step["grads"][i]).view(shape(i)));
    }
  }

  /// `tolerance` is relative to the largest element of each tensor.
  void expect_close(const json& expected, Role role, double tolerance) const {
    for (size_t i = 0; i < size(); ++i) {
      const at::Tensor want = tensor_of(expected[i]).view(shape(i));
      const at::Tensor got = arena.export_parameter(path_of(i), role);
      EXPECT_LE((got - want).abs().max().item<double>(),
                tolerance * want.abs().max().item<double>())
          << to_string(role) << " of " << path_of(i);
    }
  }

  /// The same of codes, all of them, and of their scales.
  void expect_codes(const json& codes, Role role, const json& scales, Role of_scales) const {
    for (size_t i = 0; i < size(); ++i) {
      const at::Tensor got = arena.own_part(path_of(i), role).values;
      EXPECT_EQ(got.scalar_type(), at::kByte);
      EXPECT_TRUE(at::equal(got.to(at::kFloat), tensor_of(codes[i])))
          << to_string(role) << " of " << path_of(i);
      const at::Tensor want = tensor_of(scales[i]);
      const at::Tensor got_scales = arena.own_part(path_of(i), of_scales).values;
      ASSERT_EQ(got_scales.sizes(), want.sizes());
      EXPECT_LE((got_scales - want).abs().max().item<double>(),
                tolerance::kFewRoundings * want.abs().max().item<double>());
    }
  }

  const json& data;
  UpdateRule rule;
  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena(MomentFormat moments) {
    nn::BucketSpec odd{"odd", {}, false};
    nn::BucketSpec even{"even", {}, false};
    for (size_t i = 0; i < size(); ++i) {
      parameters.add(path_of(i), shape(i)).lr_factor = data["lr_factors"][i];
      (i % 2 == 0 ? even : odd).parameters.push_back(path_of(i));
    }
    ArenaOptions options;
    options.rule = rule;
    options.moments = moments;
    options.ema_decays = data["ema_decays"].get<std::vector<double>>();
    return Arena(parameters.named(), {even, odd}, options);
  }
};

struct FixtureCase {
  const char* name;
  UpdateRule rule = UpdateRule::kAdamW;
  MomentFormat moments = MomentFormat::kF32;
};

class PublishedOptimizerTest : public testing::TestWithParam<FixtureCase> {};

TEST_P(PublishedOptimizerTest, ItsStepsAreItsOwn) {
  FixtureRun run(fixture()["cases"][GetParam().name], GetParam().rule, GetParam().moments);
  OptimizerConfig config;
  config.rule = GetParam().rule;
  config.moments = GetParam().moments;
  config.weight_decay = run.data["weight_decay"];
  config.max_grad_norm = run.data["max_grad_norm"];
  Optimizer optimizer(config, run.arena);
  for (const json& step : run.data["steps"]) {
    run.set_gradients(step);
    const StepResult result = optimizer.step(run.arena, run.data["lr"]);
    EXPECT_NEAR(result.grad_norm, step["grad_norm"].get<double>(),
                tolerance::kFewRoundings * step["grad_norm"].get<double>());
    EXPECT_FALSE(result.skipped);
    if (step.contains("weights")) {
      run.expect_close(step["weights"], Role::master(), tolerance::kFewRoundings);
    }
  }
  const bool coded = config.moments == MomentFormat::k8Bit;
  if (coded) {
    run.expect_codes(run.data["exp_avg"], Role::exp_avg(), run.data["exp_avg_scales"],
                     Role::exp_avg_scales());
  } else {
    run.expect_close(run.data["exp_avg"], Role::exp_avg(), tolerance::kFewRoundings);
  }
  EXPECT_EQ(run.data.contains("exp_avg_sq"), kernels::has_second_moment(config.rule));
  EXPECT_EQ(run.arena.buckets()[0].exp_avg_sq.defined(), run.data.contains("exp_avg_sq"));
  if (run.data.contains("exp_avg_sq") && coded) {
    run.expect_codes(run.data["exp_avg_sq"], Role::exp_avg_sq(), run.data["exp_avg_sq_scales"],
                     Role::exp_avg_sq_scales());
  } else if (run.data.contains("exp_avg_sq")) {
    run.expect_close(run.data["exp_avg_sq"], Role::exp_avg_sq(), tolerance::kFewRoundings);
  }
  for (size_t k = 0; k < run.data["averages"].size(); ++k) {
    run.expect_close(run.data["averages"][k], Role::average(k), tolerance::kFewRoundings);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PublishedOptimizerTest,
    testing::Values(FixtureCase{"plain"}, FixtureCase{"clipped"}, FixtureCase{"factors"},
                    FixtureCase{"lion", UpdateRule::kLion}, FixtureCase{"sgd", UpdateRule::kSgd},
                    FixtureCase{"adamw8", UpdateRule::kAdamW, MomentFormat::k8Bit},
                    FixtureCase{"lion8", UpdateRule::kLion, MomentFormat::k8Bit},
                    FixtureCase{"sgd8", UpdateRule::kSgd, MomentFormat::k8Bit}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CodeMapTest, IsThatOfBitsandbytes) {
  const kernels::CodeMap* maps[] = {&kernels::kSignedCodes, &kernels::kUnsignedCodes};
  for (size_t k = 0; k < 2; ++k) {
    const std::vector<float> want = fixture()["code_maps"][k];
    ASSERT_EQ(want.size(), 256U);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), maps[k]->value));
  }
}

TEST(TorchGradScalerTest, ScalesSkipsAndUpdatesEqualTorch) {
  // The optimizer's own policy has the interval of 2000; here the operations with a short one.
  FixtureRun run(fixture()["cases"]["scaled"]);
  kernels::StepControl start;
  start.loss_scale = run.data["initial_scale"];
  start.lr = run.data["lr"];
  const at::Tensor control = ops::make_step_control(start, at::kCPU);
  kernels::UpdatePolicy policy;
  policy.max_grad_norm = run.data["max_grad_norm"];
  policy.dynamic_loss_scale = true;
  policy.growth_interval = run.data["growth_interval"];
  kernels::UpdateParameters parameters;
  parameters.weight_decay = run.data["weight_decay"];
  parameters.num_emas = 1;
  parameters.ema_decay[0] = run.data["ema_decays"][0];
  std::vector<ops::OptimizerBucket> buckets;
  for (const Bucket& bucket : run.arena.buckets()) {
    buckets.push_back(
        {bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.ema, at::Tensor()});
  }
  const ops::BucketTable table(std::move(buckets));
  int64_t skipped = 0;
  for (const json& step : run.data["steps"]) {
    run.set_gradients(step);
    ops::add_sum_squares(table, control);
    ops::prepare_update(control, policy);
    ops::update_weights(table, parameters, control);
    const kernels::StepControl decisions = ops::read_step_control(control);
    EXPECT_EQ(decisions.skip == 1, step["skipped"].get<bool>());
    EXPECT_EQ(decisions.loss_scale, step["loss_scale"].get<float>());
    skipped += decisions.skip;
    if (!step["grad_norm"].is_null()) {
      EXPECT_NEAR(decisions.grad_norm, step["grad_norm"].get<double>(),
                  tolerance::kFewRoundings * step["grad_norm"].get<double>());
    }
    if (step.contains("weights")) {
      run.expect_close(step["weights"], Role::master(), tolerance::kFewRoundings);
    }
  }
  EXPECT_EQ(skipped, 4);
  run.expect_close(run.data["exp_avg_sq"], Role::exp_avg_sq(), tolerance::kFewRoundings);
  run.expect_close(run.data["averages"][0], Role::average(0), tolerance::kFewRoundings);
}

/// Random gradients of one parameter of `numel` elements, the same for every run.
struct RandomRun {
  RandomRun(int64_t numel, at::ScalarType type, std::vector<double> decays = {},
            UpdateRule rule = UpdateRule::kAdamW, MomentFormat moments = MomentFormat::kF32,
            MasterFormat masters = MasterFormat::kF32)
      : arena(make_arena(numel, type, std::move(decays), rule, moments, masters)) {}

  void set_gradients(uint32_t step, double scale = 1.0) const {
    ops::random_fill(parameters.named()[0].parameter->grad, {3, 1, step, RandomPurpose::kTest},
                     kernels::Distribution::kNormal, 0.1 * scale);
  }

  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena(int64_t numel, at::ScalarType type, std::vector<double> decays, UpdateRule rule,
                   MomentFormat moments, MasterFormat masters) {
    parameters.add("weight", {numel});
    ArenaOptions options;
    options.rule = rule;
    options.moments = moments;
    options.masters = masters;
    options.compute_type = type;
    options.ema_decays = std::move(decays);
    return Arena(parameters.named(), parameters.one_bucket(), options);
  }
};

void expect_same_bits(const Arena& a, const Arena& b, const std::vector<Role>& roles) {
  for (const Role role : roles) {
    EXPECT_TRUE(at::equal(a.buckets()[0].tensor(role), b.buckets()[0].tensor(role)))
        << to_string(role);
  }
}

std::vector<Role> all_roles(const Arena& arena) {
  std::vector<Role> roles = arena.state_roles();
  roles.push_back(Role::compute());
  roles.push_back(Role::grad());
  return roles;
}

TEST(OptimizerTest, TheComputeCopyIsTheRoundedMaster) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    RandomRun run(1000, type);
    Optimizer optimizer({}, run.arena);
    run.set_gradients(0);
    optimizer.step(run.arena, 0.01);
    EXPECT_TRUE(at::equal(run.arena.buckets()[0].compute, run.arena.buckets()[0].master.to(type)));
    EXPECT_EQ(run.arena.buckets()[0].grad.count_nonzero().item<int64_t>(), 0);
  }
}

struct Formats {
  MomentFormat moments = MomentFormat::kF32;
  MasterFormat masters = MasterFormat::kF32;
};

constexpr Formats kFormats[] = {{},
                                {MomentFormat::k8Bit, MasterFormat::kF32},
                                {MomentFormat::kF32, MasterFormat::kBF16},
                                {MomentFormat::k8Bit, MasterFormat::kBF16}};

class UpdateRuleTest : public testing::TestWithParam<std::tuple<UpdateRule, Formats>> {
 protected:
  [[nodiscard]] static UpdateRule rule() { return std::get<0>(GetParam()); }
  [[nodiscard]] static MomentFormat moments() { return std::get<1>(GetParam()).moments; }
  [[nodiscard]] static MasterFormat masters() { return std::get<1>(GetParam()).masters; }
  [[nodiscard]] static OptimizerConfig config() {
    OptimizerConfig config;
    config.rule = rule();
    config.moments = moments();
    config.masters = masters();
    config.beta2 = 0.999;
    config.weight_decay = 0.1;
    config.max_grad_norm = 1.0;
    return config;
  }
};

std::string name_of(const testing::TestParamInfo<std::tuple<UpdateRule, Formats>>& info) {
  const auto& [rule, formats] = info.param;
  return std::string(to_string(rule)) + "_" + to_string(formats.moments) + "_" +
         to_string(formats.masters);
}

TEST_P(UpdateRuleTest, FusedPassEqualsTheComposedOne) {
  RandomRun fused(10'007, at::kBFloat16, {0.9, 0.999}, rule(), moments(), masters());
  RandomRun composed(10'007, at::kBFloat16, {0.9, 0.999}, rule(), moments(), masters());
  Optimizer optimizer(config(), fused.arena);
  Optimizer of_calls(config(), composed.arena, /*own_kernels=*/false);
  for (uint32_t step = 0; step < 5; ++step) {
    fused.set_gradients(step);
    composed.set_gradients(step);
    optimizer.step(fused.arena, 0.01);
    of_calls.step(composed.arena, 0.01);
  }
  for (const Role role : fused.arena.state_roles()) {
    const at::Tensor want = composed.arena.buckets()[0].tensor(role).to(at::kDouble);
    const at::Tensor got = fused.arena.buckets()[0].tensor(role).to(at::kDouble);
    // Codes, and weights in bf16, may be a neighbour where another rounding tips them.
    const bool tips = moments() != MomentFormat::kF32 || masters() != MasterFormat::kF32;
    const at::Tensor off =
        (got - want).abs() > tolerance::kFewRoundings * want.abs().max().item<double>();
    EXPECT_LE(off.sum().item<int64_t>(), tips ? want.numel() / 500 : 0) << to_string(role);
  }
}

TEST_P(UpdateRuleTest, ARestoredRunGoesOnWithTheSameBits) {
  RandomRun whole(10'007, at::kBFloat16, {0.9, 0.999}, rule(), moments(), masters());
  RandomRun resumed(10'007, at::kBFloat16, {0.9, 0.999}, rule(), moments(), masters());
  Optimizer first(config(), whole.arena);
  for (uint32_t step = 0; step < 3; ++step) {
    whole.set_gradients(step);
    first.step(whole.arena, 0.01);
  }
  for (const Role role : whole.arena.state_roles()) {  // without padding, as in checkpoints
    resumed.arena.own_part("weight", role)
        .values.copy_(whole.arena.own_part("weight", role).values);
  }
  resumed.arena.refresh_compute();
  Optimizer second(config(), resumed.arena);
  second.restore(first.state());
  for (uint32_t step = 3; step < 6; ++step) {
    whole.set_gradients(step);
    resumed.set_gradients(step);
    first.step(whole.arena, 0.01);
    second.step(resumed.arena, 0.01);
  }
  expect_same_bits(whole.arena, resumed.arena, all_roles(whole.arena));
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateRuleTest,
                         testing::Combine(testing::Values(UpdateRule::kAdamW, UpdateRule::kLion,
                                                          UpdateRule::kSgd),
                                          testing::ValuesIn(kFormats)),
                         name_of);

// Whoever owns which slice, and whatever shares a bucket with a parameter.
TEST(FormatsTest, NeitherSlicesNorNeighboursChangeABit) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    for (const Formats& formats : kFormats) {
      RandomRun whole(40'007, at::kBFloat16, {0.9}, UpdateRule::kAdamW, formats.moments,
                      formats.masters);
      TestParameters parameters;
      parameters.add("before", {300});
      parameters.add("weight", {40'007});
      ArenaOptions options = whole.arena.options();
      options.sharding = {.group = world, .stage = 1};
      Arena arena(parameters.named(), parameters.one_bucket(), options);
      OptimizerConfig config;
      config.moments = formats.moments;
      config.masters = formats.masters;
      Optimizer optimizer(config, whole.arena);
      Optimizer divided(config, arena);
      for (uint32_t step = 0; step < 3; ++step) {
        whole.set_gradients(step);
        parameters.named()[1].parameter->grad.copy_(whole.parameters.named()[0].parameter->grad);
        optimizer.step(whole.arena, 0.01);
        divided.step(arena, 0.01);
      }
      for (const Role role : whole.arena.state_roles()) {
        const Arena::Part got = arena.own_part("weight", role);
        const at::Tensor want = whole.arena.own_part("weight", role).values;
        EXPECT_TRUE(at::equal(got.values,
                              want.narrow(0, got.begin / role.elements_each(), got.values.numel())))
            << to_string(role) << " of rank " << world.rank();
      }
    }
  });
}

TEST(FormatsTest, MomentsAndMastersTakeTheirBytes) {
  RandomRun run(12'288'000, at::kBFloat16, {}, UpdateRule::kAdamW, MomentFormat::k8Bit,
                MasterFormat::kBF16);
  const Arena& arena = run.arena;
  const int64_t moments = arena.bytes(Role::exp_avg()) + arena.bytes(Role::exp_avg_sq()) +
                          arena.bytes(Role::exp_avg_scales()) +
                          arena.bytes(Role::exp_avg_sq_scales());
  EXPECT_EQ(moments, 12'288'000 * 2 + 12'288'000 / 256 * 8);
  EXPECT_EQ(arena.bytes(Role::master()), 12'288'000 * 2);
  EXPECT_EQ(arena.bytes(Role::compute()), 0) << "the masters themselves";
}

TEST(StochasticRoundingTest, SmallUpdatesAreNotLost) {
  // Nearest rounding would leave weights of 1 where they are: a bf16 has 8 bits.
  RandomRun run(100'000, at::kBFloat16, {0.5}, UpdateRule::kSgd, MomentFormat::kF32,
                MasterFormat::kBF16);
  run.arena.load_parameter("weight", at::ones({100'000}));
  run.arena.reset_averages();
  OptimizerConfig config;
  config.rule = UpdateRule::kSgd;
  config.masters = MasterFormat::kBF16;
  config.beta1 = 0.0;
  Optimizer optimizer(config, run.arena);
  for (int step = 0; step < 10; ++step) {
    run.parameters.named()[0].parameter->grad.fill_(1.0);
    optimizer.step(run.arena, 1e-4);
  }
  const at::Tensor weights = run.arena.export_parameter("weight", Role::master()).to(at::kDouble);
  // 1 - 0.001; a weight is a step of 2^-8 down or not, the deviation of the mean is 6e-6.
  EXPECT_NEAR(weights.mean().item<double>(), 0.999, 3e-5);
  EXPECT_GT(weights.std().item<double>(), 1e-3);
}

TEST(StochasticRoundingTest, GivesNeighboursAndLeavesWhatIsNotFinite) {
  using kernels::round_stochastically;
  EXPECT_EQ(round_stochastically(1.0F, 0xffffffffU), 0x3f80) << "exact numbers stay";
  const float between = 1.0F + 1.0F / 512.0F;  // a quarter of the way
  EXPECT_EQ(round_stochastically(between, 0x00000000U), 0x3f80);
  EXPECT_EQ(round_stochastically(between, 0xbfffffffU), 0x3f80);
  EXPECT_EQ(round_stochastically(between, 0xc0000000U), 0x3f81);
  EXPECT_EQ(round_stochastically(std::numeric_limits<float>::max(), 0xffffffffU), 0x7f7f);
  EXPECT_EQ(round_stochastically(std::numeric_limits<float>::infinity(), 0xffffffffU), 0x7f80);
}

TEST(FormatsTest, AveragesStandInForBf16Masters) {
  RandomRun run(1000, at::kBFloat16, {0.9}, UpdateRule::kAdamW, MomentFormat::kF32,
                MasterFormat::kBF16);
  const Bucket& bucket = run.arena.buckets()[0];
  EXPECT_EQ(bucket.ema[0].scalar_type(), at::kFloat);
  bucket.ema[0].mul_(2.0);
  const at::Tensor before = bucket.compute.clone();
  {
    const BoundWeights bound = run.arena.bind(WeightSet::average(0));
    EXPECT_TRUE(
        at::equal(run.parameters.named()[0].parameter->value.detach(),
                  run.arena.export_parameter("weight", Role::average(0)).to(at::kBFloat16)));
  }
  EXPECT_TRUE(at::equal(bucket.compute, before));
}

TEST(OptimizerTest, TheNumberOfThreadsChangesNoBit) {
  const int threads = at::get_num_threads();
  OptimizerConfig config;
  config.max_grad_norm = 1.0;
  RandomRun one(300'001, at::kBFloat16, {0.99});
  RandomRun four(300'001, at::kBFloat16, {0.99});
  StepResult results[2];
  for (RandomRun* run : {&one, &four}) {
    at::set_num_threads(run == &one ? 1 : 4);
    Optimizer optimizer(config, run->arena);
    for (uint32_t step = 0; step < 3; ++step) {
      run->set_gradients(step);
      results[run == &one ? 0 : 1] = optimizer.step(run->arena, 0.01);
    }
  }
  at::set_num_threads(threads);
  EXPECT_EQ(results[0].grad_norm, results[1].grad_norm);
  expect_same_bits(one.arena, four.arena, all_roles(one.arena));
}

TEST(OptimizerTest, AveragesFollowTheClosedForm) {
  // lr 0 keeps the weights, so after n steps ema = w + (ema_0 - w) d^n.
  RandomRun run(100, at::kFloat, {0.9, 0.99});
  Optimizer optimizer({}, run.arena);
  const Bucket& bucket = run.arena.buckets()[0];
  const at::Tensor weights = bucket.master.clone();
  bucket.ema[0].fill_(2.0);
  bucket.ema[1].fill_(2.0);
  for (uint32_t step = 0; step < 30; ++step) {
    run.set_gradients(step);
    optimizer.step(run.arena, 0.0);
  }
  EXPECT_TRUE(at::equal(bucket.master, weights));
  const double decays[] = {0.9, 0.99};
  for (size_t k = 0; k < 2; ++k) {
    const at::Tensor expected =
        weights + (at::full(weights.sizes(), 2.0) - weights) * std::pow(decays[k], 30);
    EXPECT_LE((bucket.ema[k] - expected).abs().max().item<double>(), 3e-6);
  }
}

TEST(OptimizerTest, ASkippedStepLeavesEverythingButGradients) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    RandomRun run(1000, at::kBFloat16, {0.9});
    RandomRun untouched(1000, at::kBFloat16, {0.9});
    Optimizer optimizer({}, run.arena);
    run.set_gradients(0);
    run.arena.buckets()[0].grad[777] = bad;
    const StepResult result = optimizer.step(run.arena, 0.01);
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_EQ(result.applied_steps, 0);
    EXPECT_EQ(result.skipped_steps, 1);
    EXPECT_EQ(result.loss_scale, 1.0F);
    expect_same_bits(run.arena, untouched.arena, all_roles(run.arena));
    run.set_gradients(0);
    EXPECT_FALSE(optimizer.step(run.arena, 0.01).skipped);
  }
}

TEST(OptimizerTest, HalfPrecisionStartsWithTorchsScaleAndBacksOff) {
  RandomRun run(100, at::kHalf);
  Optimizer optimizer({}, run.arena);
  const at::Tensor scale = optimizer.loss_scale();
  EXPECT_EQ(scale.item<float>(), 65536.0F);
  run.set_gradients(0, 65536.0);
  const StepResult applied = optimizer.step(run.arena, 0.01);
  run.set_gradients(0);
  EXPECT_NEAR(applied.grad_norm, run.arena.buckets()[0].grad.norm().item<float>(), 1e-5);
  run.arena.buckets()[0].grad[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(optimizer.step(run.arena, 0.01).loss_scale, 32768.0F);
  EXPECT_EQ(scale.item<float>(), 32768.0F) << "the tensor follows";
}

TEST(OptimizerTest, ARestoredRunGoesOnWithTheSameBits) {
  RandomRun whole(1000, at::kHalf, {0.9});
  RandomRun resumed(1000, at::kHalf, {0.9});
  OptimizerConfig config;
  config.max_grad_norm = 1.0;
  Optimizer first(config, whole.arena);
  for (uint32_t step = 0; step < 3; ++step) {
    whole.set_gradients(step, 65536.0);
    first.step(whole.arena, 0.01);
  }
  for (const Role role : whole.arena.state_roles()) {
    resumed.arena.buckets()[0].tensor(role).copy_(whole.arena.buckets()[0].tensor(role));
  }
  resumed.arena.refresh_compute();
  Optimizer second(config, resumed.arena);
  second.restore(first.state());
  EXPECT_EQ(second.state(), first.state());
  EXPECT_EQ(second.state().applied_steps, 3);
  for (uint32_t step = 3; step < 6; ++step) {
    whole.set_gradients(step, 65536.0);
    resumed.set_gradients(step, 65536.0);
    const StepResult a = first.step(whole.arena, 0.01);
    const StepResult b = second.step(resumed.arena, 0.01);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  expect_same_bits(whole.arena, resumed.arena, all_roles(whole.arena));
}

TEST(OptimizerTest, EnqueuedStepsEqualBlockingOnesAndReportTheirLoss) {
  RandomRun blocking(1000, at::kBFloat16, {0.9});
  RandomRun enqueued(1000, at::kBFloat16, {0.9});
  OptimizerConfig config;
  config.max_grad_norm = 1.0;
  Optimizer first(config, blocking.arena);
  Optimizer second(config, enqueued.arena);
  for (uint32_t step = 0; step < 100; ++step) {  // more than the ring has
    const double lr = 1e-3 * (step + 1);
    blocking.set_gradients(step);
    enqueued.set_gradients(step);
    const StepResult want = first.step(blocking.arena, lr);
    const int64_t number =
        second.enqueue_step(enqueued.arena, lr, at::tensor(static_cast<float>(step)));
    EXPECT_EQ(number, step + 1);
    const StepResult got = second.wait_report(number);
    EXPECT_EQ(got.grad_norm, want.grad_norm);
    EXPECT_EQ(got.applied_steps, step + 1);
    EXPECT_EQ(got.loss, static_cast<float>(step));
    EXPECT_TRUE(std::isnan(want.loss));
  }
  expect_same_bits(blocking.arena, enqueued.arena, all_roles(blocking.arena));
  EXPECT_EQ(second.wait_report(37).applied_steps, 37) << "as long as the ring holds it";
}

TEST(OptimizerErrorTest, SettingsAreChecked) {
  RandomRun run(10, at::kFloat, {0.9});
  const auto message = [&](const OptimizerConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { const Optimizer optimizer(config, run.arena); });
  };
  EXPECT_THAT(message({.beta1 = 1.0}), HasSubstr("betas must be in [0, 1), got 1"));
  EXPECT_THAT(message({.beta2 = -0.1}), HasSubstr("betas must be in [0, 1), got -0.1"));
  EXPECT_THAT(message({.eps = 0.0}), HasSubstr("eps must be above 0"));
  EXPECT_THAT(message({.weight_decay = -1.0}), HasSubstr("weight_decay"));
  EXPECT_THAT(message({.max_grad_norm = -1.0}), HasSubstr("max_grad_norm"));
  Optimizer optimizer({}, run.arena);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { optimizer.step(run.arena, -1.0); }),
              HasSubstr("learning rate"));
  EXPECT_THAT(error_of(ErrorKind::kInternal, [&] { (void)optimizer.wait_report(1); }),
              HasSubstr("step 1 has not begun"));
  const BoundWeights bound = run.arena.bind(WeightSet::average(0));
  EXPECT_THAT(error_of(ErrorKind::kInternal, [&] { optimizer.step(run.arena, 0.1); }),
              HasSubstr("while an EMA stands in"));
}

TEST(OptimizerErrorTest, OtherFormatsAreRefused) {
  RandomRun run(10, at::kBFloat16, {}, UpdateRule::kAdamW, MomentFormat::k8Bit);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { const Optimizer optimizer({}, run.arena); }),
              HasSubstr("moments in 8bit and masters in fp32, not in fp32 and fp32"));
  Optimizer optimizer({.moments = MomentFormat::k8Bit}, run.arena);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { optimizer.restore({}); }),
              HasSubstr("a state with moments in fp32"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] {
                         const RandomRun wrong(10, at::kHalf, {}, UpdateRule::kAdamW,
                                               MomentFormat::kF32, MasterFormat::kBF16);
                       }),
              HasSubstr("weights can be kept in bf16 where they compute in bf16, got Half"));
}

TEST(OptimizerErrorTest, MomentsOfAnotherRuleAreRefused) {
  RandomRun run(10, at::kFloat, {}, UpdateRule::kLion);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { const Optimizer optimizer({}, run.arena); }),
              HasSubstr("moments of lion, not of adamw"));
  Optimizer optimizer({.rule = UpdateRule::kLion}, run.arena);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { optimizer.restore({}); }),
              HasSubstr("a state of adamw is none of lion"));
}

TEST(OptimizerErrorTest, SamplingArenasCannotBeTrained) {
  TestParameters parameters;
  parameters.add("weight", {3});
  ArenaOptions options;
  options.train = false;
  const Arena arena(parameters.named(), parameters.one_bucket(), options);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { const Optimizer optimizer({}, arena); }),
              HasSubstr("made for sampling"));
}

TEST(OptimizerErrorTest, ImpossibleStatesAreRefused) {
  RandomRun run(10, at::kHalf);
  Optimizer optimizer({}, run.arena);
  const auto message = [&](const OptimizerState& state) {
    return error_of(ErrorKind::kIo, [&] { optimizer.restore(state); });
  };
  EXPECT_THAT(message({.applied_steps = -1}), HasSubstr("-1 applied"));
  EXPECT_THAT(message({.loss_scale = 0.0F}), HasSubstr("loss scale 0"));
  EXPECT_THAT(message({.loss_scale = std::numeric_limits<float>::quiet_NaN()}), HasSubstr("nan"));
  EXPECT_THAT(message({.good_steps = 2000}), HasSubstr("2000 good steps"));
  RandomRun fp32(10, at::kFloat);
  Optimizer other({}, fp32.arena);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { other.restore({.loss_scale = 1024.0F}); }),
              HasSubstr("belongs to an fp16 run"));
}

TEST(OptimizerOpErrorTest, MismatchedTensorsAreNamed) {
  RandomRun run(10, at::kBFloat16);
  const Bucket& bucket = run.arena.buckets()[0];
  const at::Tensor control = ops::make_step_control({}, at::kCPU);
  const auto message = [&](const ops::OptimizerBucket& tensors,
                           const kernels::UpdateParameters& parameters = {}) {
    return error_of(ErrorKind::kShape,
                    [&] { ops::update_weights(ops::BucketTable({tensors}), parameters, control); });
  };
  const ops::OptimizerBucket good = {bucket.master,     bucket.grad, bucket.exp_avg,
                                     bucket.exp_avg_sq, {},          bucket.compute};
  ops::OptimizerBucket bad = good;
  bad.grad = bucket.grad.narrow(0, 0, 10);
  EXPECT_THAT(message(bad), HasSubstr("exp_avg must be contiguous Float with 10 elements"));
  bad = good;
  bad.exp_avg = bucket.exp_avg.to(at::kDouble);
  EXPECT_THAT(message(bad), HasSubstr("exp_avg must be"));
  bad = good;
  bad.exp_avg_sq = at::Tensor();
  EXPECT_THAT(message(bad), HasSubstr("the rule needs exp_avg_sq"));
  bad = good;
  bad.compute = bucket.master;
  EXPECT_THAT(message(bad), HasSubstr("compute must be bf16 or fp16"));
  kernels::UpdateParameters coded;
  coded.moments = MomentFormat::k8Bit;
  EXPECT_THAT(message(good, coded), HasSubstr("moments must be codes of 8 bits, got Float"));
  bad = good;
  bad.exp_avg = bad.exp_avg_sq = bucket.exp_avg.to(at::kByte);
  EXPECT_THAT(message(bad, coded), HasSubstr("must have 48 contiguous fp32 scales on cpu, got 0"));
  bad = good;
  bad.master = at::Tensor();
  EXPECT_THAT(message(bad), HasSubstr("masters must be fp32, got none"));
  kernels::UpdateParameters averaged;
  averaged.num_emas = 1;
  EXPECT_THAT(message(good, averaged), HasSubstr("there must be 1 EMAs"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { ops::round_to(bucket.master, bucket.grad); }),
              HasSubstr("must be bf16 or fp16"));
}

}  // namespace optimizer_test
}  // namespace kinora::optim
