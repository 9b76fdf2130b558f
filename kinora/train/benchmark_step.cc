#include "kinora/train/benchmark_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/ops/device.h"
#include "kinora/ops/random.h"
#include "kinora/train/benchmark.h"
#include "kinora/train/setup.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"

namespace kinora::train {
namespace {

constexpr uint64_t kSeed = 1;

/// Random texts, from half of the longest to all of it.
void add_texts(data::Batch& batch, const models::ModelConfig& model) {
  const int64_t size = batch.sample_index.size(0);
  const auto normal = [&](const std::vector<int64_t>& shape) {
    return ops::random_normal(shape, batch.sample_index, kSeed, 1, RandomPurpose::kTest, at::kCPU);
  };
  batch.text = normal({size, model.text_tokens, model.text_channels});
  batch.pooled = normal({size, model.text_channels});
  const int64_t half = model.text_tokens / 2;
  batch.text_lengths = model.text_tokens - batch.sample_index.remainder(std::max<int64_t>(half, 1));
  batch.fps = at::full({size}, 8.0, at::kFloat);
}

/// Those of this rank.
std::vector<data::Batch> random_batches(const RunConfig& config, const parallel::Mesh& mesh,
                                        at::Device device) {
  const models::ModelConfig& model = config.model;
  const int64_t micro_batch = config.micro_batch(mesh.data_ranks());
  const int64_t own = config.train.global_batch / mesh.data_ranks();
  std::vector<data::Batch> batches;
  for (int64_t done = 0; done < own; done += micro_batch) {
    const int64_t first = mesh.data_rank() * own + done;
    data::Batch batch;
    std::vector<int64_t> shape = model.sample_shape();
    shape.insert(shape.begin(), micro_batch);
    batch.sample_index = at::arange(first, first + micro_batch, at::kLong);
    batch.labels = batch.sample_index.remainder(model.num_classes);
    batch.images =
        (ops::random_uniform(shape, batch.sample_index, kSeed, 0, RandomPurpose::kTest, at::kCPU) *
         256.0)
            .to(at::kByte);
    if (model.takes_text()) {
      add_texts(batch, model);
    }
    if (device.is_cuda()) {
      for (at::Tensor* tensor : {&batch.images, &batch.labels, &batch.sample_index, &batch.text}) {
        *tensor = tensor->defined() ? tensor->pin_memory() : at::Tensor();
      }
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace

StepBenchmark benchmark_step(RunConfig config, const StepBenchmarkOptions& options,
                             const comm::Group& world) {
  ops::configure_computation(config.train.threads, config.train.deterministic);
  const at::Device device = choose_device(config.train.device);
  start_memory_anew(device);
  config.model = resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  diffusion::Objective objective =
      diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(objective, device);
  const parallel::Mesh mesh(world, config.parallel.mesh());
  Trainable trainable(config, mesh, device, kSeed);
  const ops::BlockKernels* kernels = trainable.kernels();
  randomise_zeros(trainable.model().named_parameters(), trainable.arena());
  StepBenchmark result;
  result.device = ops::describe(device);
  result.fast_path = kernels != nullptr;
  result.graphs = use_graphs(config, kernels) && trainable.can_be_recorded();
  TrainingStep step_runner(trainable.model(), trainable.boosted(), objective, nullptr,
                           {.seed = kSeed,
                            .label_dropout = config.train.label_dropout,
                            .model = config.model,
                            .frame_masks = config.frame_masks,
                            .ranks = mesh.world().size(),
                            .device = device,
                            .graphs = result.graphs});
  const std::vector<data::Batch> batches = random_batches(config, mesh, device);

  at::Tensor loss;
  int64_t step = 0;
  const auto enqueue_step = [&](int64_t /*call*/) {
    loss = step_runner.forward_backward(batches, step);
    (void)trainable.boosted().enqueue_update(config.lr.value, loss);
    ++step;
  };
  // Two steps without a graph, the recording, and one that replays it.
  constexpr int64_t kGraphWarmup = 4;
  const int64_t warmup = result.graphs ? std::max(options.warmup, kGraphWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    enqueue_step(i);
  }
  result.step_seconds = median_call_seconds(device, options.steps, enqueue_step);
  result.last_loss = loss.item<double>();
  result.peak_memory = ops::peak_memory(device);
  result.kernels = kernel_summary(config, kernels, config.micro_batch(mesh.data_ranks()), device);
  result.samples_per_s = static_cast<double>(config.train.global_batch) / result.step_seconds;
  result.model_tflops = 6.0 * models::forward_macs(config.model) * result.samples_per_s / 1e12;
  if (kernels != nullptr) {
    result.products = kernels->report();
  }
  if (options.profile) {
    result.profile = profile_calls(device, options.steps, enqueue_step);
  }
  return result;
}

}  // namespace kinora::train
