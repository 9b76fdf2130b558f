#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/philox.h"
#include "kinora/device/graph.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/ops/random.h"
#include "kinora/optim/optimizer.h"
#include "tests/optim/model.h"
#include "tests/optim/odd_run.h"
#include "tests/tolerances.h"

namespace kinora::optim {
namespace gpu_optimizer_test {

/// The tensor level on a GPU; with nvcc our kernels, without it the composed path.
class GpuOptimTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

/// Three parameters on a device, with the same gradients on every device.
struct DeviceRun {
  DeviceRun(at::Device device, at::ScalarType type, double factor = 1.0,
            const OptimizerConfig& formats = {})
      : config(formats), arena(make_arena(device, type, factor)) {
    config.weight_decay = 0.1;
    config.max_grad_norm = 1.0;
  }

  void set_gradients(uint32_t step, double scale) const {
    for (size_t i = 0; i < parameters.named().size(); ++i) {
      ops::random_fill(parameters.named()[i].parameter->grad, {3, i, step, RandomPurpose::kTest},
                       kernels::Distribution::kNormal, 0.1 * scale);
    }
  }

  TestParameters parameters;
  OptimizerConfig config;
  Arena arena;

 private:
  /// factor: of the learning rate of the second and third parameter.
  Arena make_arena(at::Device device, at::ScalarType type, double factor) {
    parameters.add("a.weight", {129, 33}, nn::Init::xavier_uniform(33, 129));
    parameters.add("a.bias", {7}).lr_factor = factor;
    parameters.add("b.weight", {1'000'003}).lr_factor = factor;
    ArenaOptions options;
    options.device = device;
    options.compute_type = type;
    options.rule = config.rule;
    options.moments = config.moments;
    options.masters = config.masters;
    options.ema_decays = {0.9, 0.999};
    options.offload = config.offload;
    return Arena(
        parameters.named(),
        {{"a", {"a.weight", "a.bias"}, false, "blocks"}, {"b", {"b.weight"}, false, "blocks"}},
        options);
  }
};

/// On the same gradients, times `scale`.
void take_five_steps(DeviceRun& cpu, Optimizer& on_cpu, DeviceRun& gpu, Optimizer& on_gpu,
                     double scale) {
  for (uint32_t step = 0; step < 5; ++step) {
    cpu.set_gradients(step, scale);
    gpu.set_gradients(step, scale);
    (void)on_cpu.step(cpu.arena, 0.01);
    (void)on_gpu.step(gpu.arena, 0.01);
  }
}

void expect_close(const Arena& gpu, const Arena& cpu) {
  for (size_t i = 0; i < cpu.buckets().size(); ++i) {
    for (const Role role : cpu.state_roles()) {
      const at::Tensor want = cpu.buckets()[i].tensor(role);
      const at::Tensor got = gpu.buckets()[i].tensor(role).to(at::kCPU);
      if (want.numel() == 0) {  // factors of a bucket without matrices
        EXPECT_EQ(got.numel(), 0);
        continue;
      }
      EXPECT_LE(got.sub(want).abs().max().item<double>(),
                tolerance::kFewRoundings * want.abs().max().item<double>())
          << to_string(role);
    }
  }
}

TEST_P(GpuOptimTest, InitialValuesHaveTheBitsOfTheCpu) {
  const DeviceRun cpu(at::kCPU, GetParam());
  const DeviceRun gpu(at::kCUDA, GetParam());
  for (size_t i = 0; i < cpu.arena.buckets().size(); ++i) {
    EXPECT_TRUE(
        at::equal(cpu.arena.buckets()[i].master, gpu.arena.buckets()[i].master.to(at::kCPU)));
    EXPECT_TRUE(
        at::equal(cpu.arena.buckets()[i].compute, gpu.arena.buckets()[i].compute.to(at::kCPU)));
  }
}

TEST_P(GpuOptimTest, StepsEqualTheCpu) {
  DeviceRun cpu(at::kCPU, GetParam());
  DeviceRun gpu(at::kCUDA, GetParam());
  Optimizer on_cpu(cpu.config, cpu.arena);
  Optimizer on_gpu(gpu.config, gpu.arena);
  const double scale = GetParam() == at::kHalf ? 65536.0 : 1.0;
  for (uint32_t step = 0; step < 5; ++step) {
    cpu.set_gradients(step, scale);
    gpu.set_gradients(step, scale);
    const StepResult want = on_cpu.step(cpu.arena, 0.01);
    const StepResult got = on_gpu.step(gpu.arena, 0.01);
    EXPECT_NEAR(got.grad_norm, want.grad_norm, tolerance::kFewRoundings * want.grad_norm);
    EXPECT_EQ(got.applied_steps, want.applied_steps);
  }
  expect_close(gpu.arena, cpu.arena);
  for (const Bucket& bucket : gpu.arena.buckets()) {
    EXPECT_TRUE(at::equal(bucket.compute, bucket.master.to(GetParam())));
    EXPECT_EQ(bucket.grad.count_nonzero().item<int64_t>(), 0);
  }
}

// Kernels read and write the host's memory over the link; whatever else uses these tensors, copies
// and checkpoints, takes them for the device's.
void expect_offloads(at::ScalarType type, OptimizerConfig config) {
  DeviceRun want(at::kCUDA, type, 0.25, config);
  Optimizer near(want.config, want.arena);
  const double scale = type == at::kHalf ? 65536.0 : 1.0;
  for (uint32_t step = 0; step < 5; ++step) {
    want.set_gradients(step, scale);
    near.step(want.arena, 0.01);
  }
  for (const double offload : {0.5, 1.0}) {
    config.offload = offload;
    DeviceRun got(at::kCUDA, type, 0.25, config);
    EXPECT_TRUE(got.arena.buckets()[1].is_offloaded);
    EXPECT_EQ(got.arena.buckets()[0].is_offloaded, offload == 1.0);
    Optimizer far(got.config, got.arena);
    EXPECT_TRUE(far.runs_beside());
    int64_t last = 0;
    for (uint32_t step = 0; step < 5; ++step) {
      far.wait_for(0);
      far.wait_for(1);
      got.set_gradients(step, scale);
      last = far.enqueue_step(got.arena, 0.01);
    }
    EXPECT_EQ(far.wait_report(last).applied_steps, near.state().applied_steps);
    far.wait_for_all();
    for (size_t i = 0; i < want.arena.buckets().size(); ++i) {
      std::vector<Role> roles = want.arena.state_roles();
      roles.push_back(Role::compute());
      for (const Role role : roles) {
        EXPECT_TRUE(at::equal(got.arena.buckets()[i].tensor(role).cpu(),
                              want.arena.buckets()[i].tensor(role).cpu()))
            << to_string(role) << " of bucket " << i << ", offload " << offload;
      }
      EXPECT_EQ(got.arena.buckets()[i].grad.count_nonzero().item<int64_t>(), 0);
    }
    {
      const BoundWeights bound = got.arena.bind(WeightSet::average(0));
      EXPECT_TRUE(
          at::equal(got.parameters.named()[2].parameter->value.cpu(),
                    want.arena.export_parameter("b.weight", Role::average(0)).to(type).cpu()));
    }
    EXPECT_TRUE(at::equal(got.arena.buckets()[1].compute, want.arena.buckets()[1].compute));
  }
}

TEST_P(GpuOptimTest, OffloadedStateHasTheBitsOfStateOnTheDevice) {
  expect_offloads(GetParam(), {});
  expect_offloads(GetParam(), {.moments = kernels::MomentFormat::k8Bit});
}

TEST_P(GpuOptimTest, FactorsOfTheLearningRateEqualTheCpu) {
  DeviceRun cpu(at::kCPU, GetParam(), 0.25);
  DeviceRun gpu(at::kCUDA, GetParam(), 0.25);
  Optimizer on_cpu(cpu.config, cpu.arena);
  Optimizer on_gpu(gpu.config, gpu.arena);
  take_five_steps(cpu, on_cpu, gpu, on_gpu, 1.0);
  expect_close(gpu.arena, cpu.arena);
}

// Products in bf16, of which the CPU's are in fp32: so matrices are compared with how far they
// went.
TEST_P(GpuOptimTest, StepsOfMuonEqualTheCpu) {
  const OptimizerConfig muon{.rule = kernels::UpdateRule::kMuon};
  DeviceRun cpu(at::kCPU, GetParam(), 0.25, muon);
  DeviceRun gpu(at::kCUDA, GetParam(), 0.25, muon);
  Optimizer on_cpu(cpu.config, cpu.arena);
  Optimizer on_gpu(gpu.config, gpu.arena);
  const at::Tensor start = cpu.arena.export_parameter("a.weight", Role::master()).clone();
  const double scale = GetParam() == at::kHalf ? 65536.0 : 1.0;
  take_five_steps(cpu, on_cpu, gpu, on_gpu, scale);
  for (const char* path : {"a.weight", "a.bias", "b.weight"}) {
    const bool is_matrix = std::string(path) == "a.weight";
    for (const Role role : cpu.arena.state_roles()) {
      if (is_matrix && role.kind == Role::Kind::kExpAvgSq) {
        continue;
      }
      const at::Tensor want = cpu.arena.export_parameter(path, role);
      const at::Tensor got = gpu.arena.export_parameter(path, role).to(at::kCPU);
      const bool is_weights = role.kind != Role::Kind::kExpAvg;
      const double most = is_matrix && is_weights
                              ? 0.03 * want.sub(start).abs().max().item<double>()
                              : tolerance::kFewRoundings * want.abs().max().item<double>();
      EXPECT_LE(got.sub(want).abs().max().item<double>(), most) << to_string(role) << " " << path;
    }
  }
  EXPECT_EQ(gpu.arena.buckets()[0].grad.count_nonzero().item<int64_t>(), 0);
}

TEST_P(GpuOptimTest, StepsOfRulesThatSumOverParametersEqualTheCpu) {
  for (const kernels::UpdateRule rule :
       {kernels::UpdateRule::kAdafactor, kernels::UpdateRule::kCame, kernels::UpdateRule::kLamb,
        kernels::UpdateRule::kProdigy}) {
    SCOPED_TRACE(to_string(rule));
    const OptimizerConfig config{.rule = rule, .d0 = 0.1};
    DeviceRun cpu(at::kCPU, GetParam(), 0.25, config);
    DeviceRun gpu(at::kCUDA, GetParam(), 0.25, config);
    Optimizer on_cpu(cpu.config, cpu.arena);
    Optimizer on_gpu(gpu.config, gpu.arena);
    const double scale = GetParam() == at::kHalf ? 65536.0 : 1.0;
    take_five_steps(cpu, on_cpu, gpu, on_gpu, scale);
    expect_close(gpu.arena, cpu.arena);
    gpu.set_gradients(5, scale);
    gpu.arena.buckets()[1].grad[777] = std::numeric_limits<float>::infinity();
    std::vector<at::Tensor> before;
    for (const Role role : gpu.arena.state_roles()) {
      before.push_back(gpu.arena.buckets()[0].tensor(role).clone());
    }
    EXPECT_TRUE(on_gpu.step(gpu.arena, 0.01).skipped);
    for (size_t k = 0; k < before.size(); ++k) {
      EXPECT_TRUE(at::equal(gpu.arena.buckets()[0].tensor(gpu.arena.state_roles()[k]), before[k]));
    }
  }
}

/// Nine blocks, the second of three pieces, and an embedder; the same gradients in every run.
struct BlocksRun {
  BlocksRun(at::ScalarType type, const OptimizerConfig& wanted)
      : config(wanted), arena(make_arena(type)), optimizer(config, arena) {}

  void step(uint32_t number) {
    for (size_t i = 0; i < arena.buckets().size(); ++i) {
      optimizer.wait_for(i);
    }
    for (size_t i = 0; i < parameters.named().size(); ++i) {
      ops::random_fill(parameters.named()[i].parameter->grad, {3, i, number, RandomPurpose::kTest},
                       kernels::Distribution::kNormal, 0.1);
    }
    if (number == 2) {
      parameters.named()[1].parameter->grad.fill_(std::numeric_limits<float>::infinity());
    }
    (void)optimizer.enqueue_step(arena, 0.01);
  }

  /// The same with updates in the order of backward, each bucket's gradients in a buffer that
  /// others have had.
  void step_in_backward(uint32_t number) {
    (void)optimizer.begin_updates(arena, 0.01);
    for (size_t bucket = arena.buckets().size(); bucket-- > 0;) {
      for (const size_t other : {bucket + 2, bucket + 1}) {
        if (other < arena.buckets().size()) {
          optimizer.wait_for_gradient(other);
        }
      }
      optimizer.wait_for(bucket);
      at::Tensor(arena.buckets()[bucket].whole_grad).zero_();
      for (size_t i = 0; i < parameters.named().size(); ++i) {
        const auto& slots = arena.buckets()[bucket].slots;
        if (std::ranges::find(slots, parameters.named()[i].path, &Slot::path) != slots.end()) {
          ops::random_fill(parameters.named()[i].parameter->grad,
                           {3, i, number, RandomPurpose::kTest}, kernels::Distribution::kNormal,
                           0.1);
        }
      }
      optimizer.update(bucket);
    }
    optimizer.end_updates();
  }

  TestParameters parameters;
  OptimizerConfig config;
  Arena arena;
  Optimizer optimizer;

 private:
  Arena make_arena(at::ScalarType type) {
    config.weight_decay = 0.1;
    parameters.add("embed.weight", {300, 5}, nn::Init::normal(0.5), true);
    std::vector<nn::BucketSpec> buckets = {{"embed", {"embed.weight"}, true}};
    for (int i = 0; i < 9; ++i) {
      const std::string name = "block" + std::to_string(i);
      parameters.add(name + ".weight", {i == 1 ? 9'001 : 129, 1'001 + i});
      parameters.add(name + ".bias", {7}).lr_factor = 2.0;
      buckets.push_back({name, {name + ".weight", name + ".bias"}, false, "blocks"});
    }
    ArenaOptions options;
    options.device = at::kCUDA;
    options.compute_type = type;
    options.rule = config.rule;
    options.moments = config.moments;
    options.masters = config.masters;
    options.ema_decays = {0.9};
    options.offload = config.offload;
    options.in_backward = config.in_backward;
    options.disk = config.disk;
    return Arena(parameters.named(), buckets, options);
  }
};

struct FarCase {
  const char* name;
  at::ScalarType type;
  OptimizerConfig config = {};
};

class GpuFarUpdatesTest : public testing::TestWithParam<FarCase> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

TEST_P(GpuFarUpdatesTest, TheGpuAndTheHostGiveTheBitsOfStateOnTheDevice) {
  OptimizerConfig clipped = GetParam().config;
  clipped.max_grad_norm = 1.0;
  BlocksRun near(GetParam().type, clipped);
  constexpr uint32_t kSteps = 8;
  for (uint32_t step = 0; step < kSteps; ++step) {
    near.step(step);
  }
  for (const double share : {0.4, 1.0}) {
    for (const bool on_disk : {false, true}) {
      if (on_disk && GetParam().config.rule == kernels::UpdateRule::kScheduleFree) {
        continue;  // is refused
      }
      SCOPED_TRACE(testing::Message() << "share " << share << (on_disk ? " on a disk" : ""));
      OptimizerConfig config = clipped;
      config.offload = share;
      config.disk = on_disk ? testing::TempDir() : "";
      BlocksRun far(GetParam().type, config);
      for (uint32_t step = 0; step < kSteps; ++step) {
        far.step(step);
        if (step == 0 && !on_disk) {
          const auto [of_host, all] = far.optimizer.far()->shares();
          EXPECT_GT(of_host, 0U);
          EXPECT_LT(of_host, all);
        }
      }
      EXPECT_EQ(far.optimizer.state(), near.optimizer.state());
      std::vector<Role> roles = near.arena.state_roles();
      roles.push_back(Role::compute());
      for (size_t i = 0; i < near.arena.buckets().size(); ++i) {
        for (const Role role : roles) {
          EXPECT_TRUE(at::equal(near.arena.buckets()[i].tensor(role),
                                far.arena.fetched(far.arena.buckets()[i].tensor(role))))
              << to_string(role) << " of bucket " << i;
        }
        EXPECT_EQ(far.arena.buckets()[i].grad.count_nonzero().item<int64_t>(), 0);
      }
      const BoundWeights of_near = near.arena.bind(WeightSet::average(0));
      const BoundWeights of_far = far.arena.bind(WeightSet::average(0));
      for (size_t i = 0; i < near.parameters.named().size(); ++i) {
        EXPECT_TRUE(at::equal(near.parameters.named()[i].parameter->value,
                              far.parameters.named()[i].parameter->value));
      }
    }
  }
}

TEST_P(GpuFarUpdatesTest, InBackwardTheyGiveTheBitsOfUpdatesAfterIt) {
  if (GetParam().type == at::kHalf || GetParam().config.rule == kernels::UpdateRule::kAdafactor) {
    GTEST_SKIP() << "is refused";
  }
  BlocksRun after(GetParam().type, GetParam().config);
  constexpr uint32_t kFirst = 3;  // before it is one that is skipped
  constexpr uint32_t kEnd = 11;
  for (uint32_t step = kFirst; step < kEnd; ++step) {
    after.step(step);
  }
  for (const double share : {0.0, 0.4, 1.0}) {
    SCOPED_TRACE(testing::Message() << "share " << share);
    OptimizerConfig config = GetParam().config;
    config.offload = share;
    config.in_backward = true;
    BlocksRun within(GetParam().type, config);
    for (uint32_t step = kFirst; step < kEnd; ++step) {
      within.step_in_backward(step);
    }
    EXPECT_EQ(within.optimizer.state(), after.optimizer.state());
    std::vector<Role> roles = after.arena.state_roles();
    roles.push_back(Role::compute());
    for (size_t i = 0; i < after.arena.buckets().size(); ++i) {
      for (const Role role : roles) {
        EXPECT_TRUE(at::equal(after.arena.buckets()[i].tensor(role),
                              within.arena.buckets()[i].tensor(role)))
            << to_string(role) << " of bucket " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, GpuFarUpdatesTest,
    testing::Values(
        FarCase{"adamw_fp32", at::kFloat}, FarCase{"adamw_bf16", at::kBFloat16},
        FarCase{"adamw_fp16", at::kHalf},
        FarCase{"lion", at::kBFloat16, {.rule = kernels::UpdateRule::kLion}},
        FarCase{"adafactor", at::kBFloat16, {.rule = kernels::UpdateRule::kAdafactor}},
        FarCase{"schedule_free", at::kBFloat16, {.rule = kernels::UpdateRule::kScheduleFree}},
        FarCase{"coded", at::kBFloat16, {.moments = kernels::MomentFormat::k8Bit}},
        FarCase{
            "small",
            at::kBFloat16,
            {.moments = kernels::MomentFormat::k8Bit, .masters = kernels::MasterFormat::kBF16}}),
    [](const auto& info) { return info.param.name; });

class GpuFormatsTest : public testing::TestWithParam<OptimizerConfig> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

TEST_P(GpuFormatsTest, StepsHaveTheBitsOfTheCpu) {
  DeviceRun cpu(at::kCPU, at::kBFloat16, 0.25, GetParam());
  DeviceRun gpu(at::kCUDA, at::kBFloat16, 0.25, GetParam());
  // Clipping multiplies by what a sum over the gradients gives, whose order is the device's.
  cpu.config.max_grad_norm = gpu.config.max_grad_norm = 0.0;
  Optimizer on_cpu(cpu.config, cpu.arena);
  Optimizer on_gpu(gpu.config, gpu.arena);
  take_five_steps(cpu, on_cpu, gpu, on_gpu, 1.0);
  for (size_t i = 0; i < cpu.arena.buckets().size(); ++i) {
    for (const Role role : cpu.arena.state_roles()) {
      EXPECT_TRUE(at::equal(cpu.arena.buckets()[i].tensor(role),
                            gpu.arena.buckets()[i].tensor(role).to(at::kCPU)))
          << to_string(role);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuFormatsTest,
                         testing::Values(OptimizerConfig{.moments = kernels::MomentFormat::k8Bit},
                                         OptimizerConfig{
                                             .rule = kernels::UpdateRule::kScheduleFree},
                                         OptimizerConfig{.rule = kernels::UpdateRule::kScheduleFree,
                                                         .masters = kernels::MasterFormat::kBF16},
                                         OptimizerConfig{.masters = kernels::MasterFormat::kBF16},
                                         OptimizerConfig{.moments = kernels::MomentFormat::k8Bit,
                                                         .masters = kernels::MasterFormat::kBF16},
                                         OptimizerConfig{.rule = kernels::UpdateRule::kAdafactor},
                                         OptimizerConfig{.rule = kernels::UpdateRule::kAdafactor,
                                                         .masters = kernels::MasterFormat::kBF16},
                                         OptimizerConfig{.rule = kernels::UpdateRule::kCame},
                                         OptimizerConfig{.rule = kernels::UpdateRule::kCame,
                                                         .masters = kernels::MasterFormat::kBF16}),
                         [](const auto& info) {
                           return std::string(to_string(info.param.rule)) + "_" +
                                  to_string(info.param.moments) + "_" +
                                  to_string(info.param.masters);
                         });

class GpuFactoredTest : public testing::TestWithParam<kernels::UpdateRule> {
 protected:
  [[nodiscard]] static ArenaOptions on(at::Device device) {
    ArenaOptions options;
    options.device = device;
    options.rule = GetParam();
    return options;
  }
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

TEST_P(GpuFactoredTest, StepsOfOddSizesHaveTheBitsOfTheCpuAndAreNearTheComposedOnes) {
  const OptimizerConfig config{.rule = GetParam()};
  OddRun cpu(on(at::kCPU));
  OddRun gpu(on(at::kCUDA));
  OddRun composed(on(at::kCUDA));
  Optimizer on_cpu(config, cpu.arena);
  Optimizer on_gpu(config, gpu.arena);
  Optimizer of_composed(config, composed.arena, /*own_kernels=*/false);
  for (uint32_t step = 0; step < 3; ++step) {
    for (const OddRun* run : {&cpu, &gpu, &composed}) {
      run->set_gradients(step);
    }
    on_cpu.step(cpu.arena, 0.01);
    on_gpu.step(gpu.arena, 0.01);
    of_composed.step(composed.arena, 0.01);
  }
  for (const Role role : cpu.arena.state_roles()) {
    EXPECT_TRUE(at::equal(cpu.arena.buckets()[0].tensor(role),
                          gpu.arena.buckets()[0].tensor(role).to(at::kCPU)))
        << to_string(role);
  }
  expect_close(composed.arena, cpu.arena);
}

TEST_P(GpuFactoredTest, RecordedStepsHaveTheBitsOfLaunchedOnes) {
  const OptimizerConfig config{.rule = GetParam()};
  OddRun launched(on(at::kCUDA));
  OddRun recorded(on(at::kCUDA));
  Optimizer of_launched(config, launched.arena);
  Optimizer of_recorded(config, recorded.arena);
  device::Graph graph;
  for (uint32_t step = 0; step < 4; ++step) {
    launched.set_gradients(step);
    recorded.set_gradients(step);
    of_launched.step(launched.arena, 0.01);
    const int64_t number = of_recorded.begin_step(0.01);
    if (step == 0) {
      of_recorded.launch_step(recorded.arena);
      EXPECT_EQ(of_recorded.wait_report(number).applied_steps, 1);
      graph.record([&] { of_recorded.launch_step(recorded.arena); });
    } else {
      graph.replay();
      EXPECT_EQ(of_recorded.wait_report(number).applied_steps, step + 1);
    }
  }
  for (const Role role : launched.arena.state_roles()) {
    EXPECT_TRUE(at::equal(launched.arena.buckets()[0].tensor(role),
                          recorded.arena.buckets()[0].tensor(role)))
        << to_string(role);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GpuFactoredTest,
                         testing::Values(kernels::UpdateRule::kAdafactor,
                                         kernels::UpdateRule::kCame),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(GpuOptimTest, TheSameStepsGiveTheSameBits) {
  DeviceRun first(at::kCUDA, GetParam());
  DeviceRun second(at::kCUDA, GetParam());
  for (DeviceRun* run : {&first, &second}) {
    Optimizer optimizer(run->config, run->arena);
    for (uint32_t step = 0; step < 3; ++step) {
      run->set_gradients(step, 1.0);
      optimizer.step(run->arena, 0.01);
    }
  }
  for (size_t i = 0; i < first.arena.buckets().size(); ++i) {
    for (const Role role : first.arena.state_roles()) {
      EXPECT_TRUE(
          at::equal(first.arena.buckets()[i].tensor(role), second.arena.buckets()[i].tensor(role)));
    }
  }
}

TEST_P(GpuOptimTest, ComposedPassEqualsTheCpu) {
  DeviceRun cpu(at::kCPU, GetParam());
  DeviceRun gpu(at::kCUDA, GetParam());
  kernels::UpdateParameters parameters;
  parameters.num_emas = 2;
  parameters.ema_decay[0] = 0.9;
  parameters.ema_decay[1] = 0.999;
  for (DeviceRun* run : {&cpu, &gpu}) {
    kernels::StepControl start;
    start.lr = 0.01;
    const at::Tensor control = ops::make_step_control(start, run->arena.options().device);
    run->set_gradients(0, 1.0);
    std::vector<ops::OptimizerBucket> buckets;
    for (const Bucket& bucket : run->arena.buckets()) {
      const bool rounds = !bucket.compute.is_same(bucket.master);
      buckets.push_back({bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.ema,
                         rounds ? bucket.compute : at::Tensor()});
    }
    const ops::BucketTable table(std::move(buckets));
    ops::add_sum_squares(table, control);
    ops::prepare_update(control, {});
    if (run == &cpu) {
      ops::update_weights(table, parameters, control);
      continue;
    }
    for (const ops::OptimizerBucket& bucket : table.buckets()) {
      ops::update_weights_composed(bucket, parameters, control);
    }
  }
  expect_close(gpu.arena, cpu.arena);
}

TEST_P(GpuOptimTest, EnqueuedStepsEqualBlockingOnes) {
  DeviceRun blocking(at::kCUDA, GetParam());
  DeviceRun enqueued(at::kCUDA, GetParam());
  Optimizer first(blocking.config, blocking.arena);
  Optimizer second(enqueued.config, enqueued.arena);
  const at::Tensor loss = at::tensor(std::vector<float>{3.5F}).to(at::kCUDA);
  constexpr uint32_t kSteps = 70;  // further than the host may be ahead
  std::vector<StepResult> want;
  for (uint32_t step = 0; step < kSteps; ++step) {
    blocking.set_gradients(step, 1.0);
    enqueued.set_gradients(step, 1.0);
    const double lr = 1e-3 * (step + 1);
    want.push_back(first.step(blocking.arena, lr));
    second.enqueue_step(enqueued.arena, lr, loss);
  }
  for (uint32_t step = kSteps - 10; step < kSteps; ++step) {
    const StepResult got = second.wait_report(step + 1);
    EXPECT_EQ(got.grad_norm, want[step].grad_norm);
    EXPECT_EQ(got.applied_steps, step + 1);
    EXPECT_EQ(got.loss, 3.5F);
  }
  for (size_t i = 0; i < blocking.arena.buckets().size(); ++i) {
    for (const Role role : blocking.arena.state_roles()) {
      EXPECT_TRUE(at::equal(blocking.arena.buckets()[i].tensor(role),
                            enqueued.arena.buckets()[i].tensor(role)));
    }
  }
}

TEST_P(GpuOptimTest, ANonFiniteGradientIsSkippedOnTheDevice) {
  DeviceRun run(at::kCUDA, GetParam());
  const DeviceRun untouched(at::kCUDA, GetParam());
  Optimizer optimizer(run.config, run.arena);
  const at::Tensor scale = optimizer.loss_scale();
  run.set_gradients(0, 1.0);
  run.arena.buckets()[1].grad[777'777] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(optimizer.step(run.arena, 0.01).skipped);
  EXPECT_EQ(scale.item<float>(), GetParam() == at::kHalf ? 32768.0F : 1.0F);
  for (size_t i = 0; i < run.arena.buckets().size(); ++i) {
    for (const Role role : run.arena.state_roles()) {
      EXPECT_TRUE(at::equal(run.arena.buckets()[i].tensor(role),
                            untouched.arena.buckets()[i].tensor(role)));
    }
    EXPECT_EQ(run.arena.buckets()[i].grad.count_nonzero().item<int64_t>(), 0);
  }
}

TEST_P(GpuOptimTest, BoundAveragesAreUndoneToTheBit) {
  DeviceRun run(at::kCUDA, GetParam());
  const at::Tensor before = run.arena.buckets()[0].compute.clone();
  run.arena.buckets()[0].ema[0].mul_(2.0);
  {
    const BoundWeights bound = run.arena.bind(WeightSet::average(0));
    EXPECT_TRUE(at::equal(run.parameters.named()[0].parameter->value.detach(),
                          run.arena.export_parameter("a.weight", Role::average(0)).to(GetParam())));
  }
  EXPECT_TRUE(at::equal(run.arena.buckets()[0].compute, before));
}

INSTANTIATE_TEST_SUITE_P(Types, GpuOptimTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(GpuRandomOpTest, BatchesHaveTheBitsOfTheCpu) {
  if (!cuda_available()) {
    GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  }
  const at::Tensor index = at::tensor(std::vector<int64_t>{5, 3, int64_t{1} << 40});
  for (const int64_t width : {5, 32}) {
    const at::Tensor cpu =
        ops::random_normal({3, 3, width, width}, index, 1, 2, RandomPurpose::kNoise, at::kCPU);
    const at::Tensor gpu =
        ops::random_normal({3, 3, width, width}, index, 1, 2, RandomPurpose::kNoise, at::kCUDA);
    EXPECT_TRUE(gpu.is_cuda());
    EXPECT_TRUE(at::equal(cpu, gpu.to(at::kCPU)));
    EXPECT_TRUE(
        at::equal(ops::random_uniform({3, width}, index, 1, 2, RandomPurpose::kTimestep, at::kCPU),
                  ops::random_uniform({3, width}, index.to(at::kCUDA), 1, 2,
                                      RandomPurpose::kTimestep, at::kCUDA)
                      .to(at::kCPU)));
  }
}

}  // namespace gpu_optimizer_test
}  // namespace kinora::optim
