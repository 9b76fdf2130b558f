#include "kinora/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/ops/random.h"
#include "tests/error_of.h"
#include "tests/optim/model.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::optim {
namespace optimizer_test {

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
  explicit FixtureRun(const json& data, UpdateRule rule = UpdateRule::kAdamW)
      : data(data), rule(rule), arena(make_arena()) {
    for (size_t i = 0; i < size(); ++i) {
      arena.load_parameter(path_of(i), tensor_of(data["initial"][i]).view(shape(i)));
    }
    arena.reset_averages();
  }

  [[nodiscard]] size_t size() const { return fixture()["shapes"].size(); }
  [[nodiscard]] std::vector<int64_t> shape(size_t i) const { return fixture()["shapes"][i]; }

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

  const json& data;
  UpdateRule rule;
  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena() {
    nn::BucketSpec odd{"odd", {}, false};
    nn::BucketSpec even{"even", {}, false};
    for (size_t i = 0; i < size(); ++i) {
      parameters.add(path_of(i), shape(i)).lr_factor = data["lr_factors"][i];
      (i % 2 == 0 ? even : odd).parameters.push_back(path_of(i));
    }
    ArenaOptions options;
    options.rule = rule;
    options.ema_decays = data["ema_decays"].get<std::vector<double>>();
    return Arena(parameters.named(), {even, odd}, options);
  }
};

struct FixtureCase {
  const char* name;
  UpdateRule rule = UpdateRule::kAdamW;
};

class PublishedOptimizerTest : public testing::TestWithParam<FixtureCase> {};

TEST_P(PublishedOptimizerTest, TwentyStepsAreItsOwn) {
  FixtureRun run(fixture()["cases"][GetParam().name], GetParam().rule);
  OptimizerConfig config;
  config.rule = GetParam().rule;
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
  run.expect_close(run.data["exp_avg"], Role::exp_avg(), tolerance::kFewRoundings);
  EXPECT_EQ(run.data.contains("exp_avg_sq"), kernels::has_second_moment(config.rule));
  EXPECT_EQ(run.arena.buckets()[0].exp_avg_sq.defined(), run.data.contains("exp_avg_sq"));
  if (run.data.contains("exp_avg_sq")) {
    run.expect_close(run.data["exp_avg_sq"], Role::exp_avg_sq(), tolerance::kFewRoundings);
  }
  for (size_t k = 0; k < run.data["averages"].size(); ++k) {
    run.expect_close(run.data["averages"][k], Role::average(k), tolerance::kFewRoundings);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PublishedOptimizerTest,
                         testing::Values(FixtureCase{"plain"}, FixtureCase{"clipped"},
                                         FixtureCase{"factors"},
                                         FixtureCase{"lion", UpdateRule::kLion},
                                         FixtureCase{"sgd", UpdateRule::kSgd}),
                         [](const auto& info) { return std::string(info.param.name); });

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
            UpdateRule rule = UpdateRule::kAdamW)
      : arena(make_arena(numel, type, std::move(decays), rule)) {}

  void set_gradients(uint32_t step, double scale = 1.0) const {
    ops::random_fill(parameters.named()[0].parameter->grad, {3, 1, step, RandomPurpose::kTest},
                     kernels::Distribution::kNormal, 0.1 * scale);
  }

  TestParameters parameters;
  Arena arena;

 private:
  Arena make_arena(int64_t numel, at::ScalarType type, std::vector<double> decays,
                   UpdateRule rule) {
    parameters.add("weight", {numel});
    ArenaOptions options;
    options.rule = rule;
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

class UpdateRuleTest : public testing::TestWithParam<UpdateRule> {};

TEST_P(UpdateRuleTest, FusedPassEqualsTheComposedOne) {
  RandomRun fused(10'007, at::kBFloat16, {0.9, 0.999}, GetParam());
  RandomRun composed(10'007, at::kBFloat16, {0.9, 0.999}, GetParam());
  OptimizerConfig config;
  config.rule = GetParam();
  config.beta2 = 0.999;
  config.weight_decay = 0.1;
  config.max_grad_norm = 1.0;
  Optimizer optimizer(config, fused.arena);
  kernels::UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  kernels::StepControl start;
  start.lr = 0.01;
  const at::Tensor control = ops::make_step_control(start, at::kCPU);
  kernels::UpdateParameters parameters;
  parameters.rule = GetParam();
  parameters.weight_decay = 0.1;
  parameters.num_emas = 2;
  parameters.ema_decay[0] = 0.9;
  parameters.ema_decay[1] = 0.999;
  for (uint32_t step = 0; step < 5; ++step) {
    fused.set_gradients(step);
    composed.set_gradients(step);
    optimizer.step(fused.arena, 0.01);
    const Bucket& bucket = composed.arena.buckets()[0];
    const ops::OptimizerBucket tensors = {bucket.master,     bucket.grad, bucket.exp_avg,
                                          bucket.exp_avg_sq, bucket.ema,  bucket.compute};
    ops::add_sum_squares(ops::BucketTable({tensors}), control);
    ops::prepare_update(control, policy);
    ops::update_weights_composed(tensors, parameters, control);
  }
  for (const Role role : fused.arena.state_roles()) {
    const at::Tensor want = composed.arena.buckets()[0].tensor(role);
    EXPECT_LE((fused.arena.buckets()[0].tensor(role) - want).abs().max().item<double>(),
              tolerance::kFewRoundings * want.abs().max().item<double>())
        << to_string(role);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateRuleTest,
                         testing::ValuesIn(kUpdateRules),
                         [](const auto& info) { return std::string(to_string(info.param)); });

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
  EXPECT_THAT(message(bad), HasSubstr("grad must be contiguous Float with 12288 elements"));
  bad = good;
  bad.exp_avg = bucket.exp_avg.to(at::kDouble);
  EXPECT_THAT(message(bad), HasSubstr("exp_avg must be"));
  bad = good;
  bad.exp_avg_sq = at::Tensor();
  EXPECT_THAT(message(bad), HasSubstr("adamw needs exp_avg_sq"));
  bad = good;
  bad.compute = bucket.master;
  EXPECT_THAT(message(bad), HasSubstr("compute must be bf16 or fp16"));
  kernels::UpdateParameters averaged;
  averaged.num_emas = 1;
  EXPECT_THAT(message(good, averaged), HasSubstr("there must be 1 EMAs"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { ops::round_to(bucket.master, bucket.grad); }),
              HasSubstr("must be bf16 or fp16"));
}

}  // namespace optimizer_test
}  // namespace kinora::optim
