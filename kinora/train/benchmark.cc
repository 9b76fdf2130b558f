#include "kinora/train/benchmark.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "kinora/models/dit.h"
#include "kinora/ops/device.h"
#include "kinora/ops/random.h"
#include "kinora/train/setup.h"
#include "kinora/train/training_step.h"

namespace kinora::train {
namespace {

constexpr uint64_t kSeed = 1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2,
                   values.end());
  return values[values.size() / 2];
}

/// TFLOP/s of square matrix products of random numbers.
double gemm_tflops(at::ScalarType type, at::Device device) {
  const int64_t size = device.is_cuda() ? 8192 : 1024;
  constexpr int kRepeats = 10;
  const auto matrix = [&](int64_t index) {
    return ops::random_normal({1, size, size}, at::arange(index, index + 1, at::kLong), kSeed, 0,
                              RandomPurpose::kTest, device)
        .squeeze(0)
        .to(type);
  };
  const at::Tensor a = matrix(0);
  const at::Tensor b = matrix(1);
  at::Tensor product = at::matmul(a, b);
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    ops::synchronize(device);
    const double started = now();
    product = at::matmul(a, b);
    ops::synchronize(device);
    seconds.push_back(now() - started);
  }
  const double flops =
      2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  return flops / median(seconds) / 1e12;
}

void randomise(const std::vector<nn::NamedParameter>& parameters, optim::Arena& arena) {
  constexpr double kStd = 0.02;
  for (const nn::NamedParameter& named : parameters) {
    const nn::Parameter& parameter = *named.parameter;
    if (parameter.init.kind == nn::Init::Kind::kZero) {
      const at::Tensor values = at::empty(parameter.shape, at::kFloat);
      ops::random_fill(values,
                       {.seed = kSeed,
                        .sample = random_name(named.path.c_str()),
                        .step = 0,
                        .purpose = RandomPurpose::kTest},
                       kernels::Distribution::kNormal, kStd);
      arena.load_parameter(named.path, values);
    }
  }
}

std::vector<data::Batch> random_batches(const RunConfig& config) {
  const models::DiTConfig& model = config.model;
  std::vector<data::Batch> batches;
  for (int64_t done = 0; done < config.train.global_batch; done += config.micro_batch()) {
    data::Batch batch;
    batch.sample_index = at::arange(done, done + config.micro_batch(), at::kLong);
    batch.labels = batch.sample_index.remainder(model.num_classes);
    batch.images =
        (ops::random_uniform({config.micro_batch(), model.in_channels, model.height, model.width},
                             batch.sample_index, kSeed, 0, RandomPurpose::kTest, at::kCPU) *
         256.0)
            .to(at::kByte);
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace

StepBenchmark benchmark_step(RunConfig config, int64_t warmup_steps, int64_t timed_steps) {
  ops::configure_computation(config.train.threads, config.train.deterministic);
  const at::Device device = choose_device(config.train.device);
  config.model = resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  diffusion::Objective objective =
      diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(objective, device);
  models::DiT model(config.model);
  model.set_recompute(recompute_blocks(config.train.recompute, config.model.depth));
  optim::Arena arena(model.named_parameters(), models::dit_buckets(config.model),
                     {.device = device,
                      .compute_type = compute_type(config.train.precision),
                      .seed = kSeed,
                      .train = true,
                      .ema_decays = config.ema_decays});
  model.to_device(device);
  randomise(model.named_parameters(), arena);
  optim::AdamW optimizer(config.optim, arena);
  TrainingStep step_runner(model, objective, nullptr,
                           {.seed = kSeed,
                            .label_dropout = config.train.label_dropout,
                            .null_class = config.model.num_classes,
                            .global_batch = config.train.global_batch,
                            .device = device});
  const std::vector<data::Batch> batches = random_batches(config);

  StepBenchmark result{.device = ops::describe(device),
                       .kernels = kernel_summary(config.model, config.train.precision,
                                                 config.micro_batch(), device)};
  std::vector<double> seconds;
  for (int64_t step = 0; step < warmup_steps + timed_steps; ++step) {
    const double started = now();
    const at::Tensor loss = step_runner.forward_backward(batches, step, optimizer.loss_scale());
    optimizer.step(arena, config.lr.value);
    result.last_loss = loss.item<double>();
    if (step >= warmup_steps) {
      seconds.push_back(now() - started);
    }
  }
  result.step_seconds = median(seconds);
  result.samples_per_s = static_cast<double>(config.train.global_batch) / result.step_seconds;
  result.model_tflops = 6.0 * models::forward_macs(config.model) * result.samples_per_s / 1e12;
  result.peak_memory = ops::peak_memory(device);
  result.gemm_tflops = gemm_tflops(compute_type(config.train.precision), device);
  return result;
}

}  // namespace kinora::train
