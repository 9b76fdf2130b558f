#include "kinora/train/bench/benchmark_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/device/device.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/encode_stage.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/setup.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"

namespace kinora::train {
namespace {

/// Random texts, from half of the longest to all of it.
void add_texts(data::Batch& batch, const models::ModelConfig& model) {
  const int64_t size = batch.sample_index.size(0);
  const auto normal = [&](const std::vector<int64_t>& shape) {
    return ops::random_normal(shape, batch.sample_index, kBenchmarkSeed, 1, RandomPurpose::kTest,
                              at::kCPU);
  };
  if (model.text_encoder.any()) {
    batch.tokens = at::zeros({size, model.text_tokens}, at::kLong);
  } else {
    batch.text = normal({size, model.text_tokens, model.text_channels});
  }
  batch.pooled = normal({size, model.text_channels});
  const int64_t half = model.text_tokens / 2;
  batch.text_lengths = model.text_tokens - batch.sample_index.remainder(std::max<int64_t>(half, 1));
  batch.fps = at::full({size}, 8.0, at::kFloat);
}

/// Samples first, ..., first + batch - 1 of that shape.
data::Batch random_batch(const models::ModelConfig& model, std::vector<int64_t> shape,
                         int64_t first, int64_t size, at::Device device) {
  shape.insert(shape.begin(), size);
  data::Batch batch;
  batch.sample_index = at::arange(first, first + size, at::kLong);
  batch.labels = batch.sample_index.remainder(model.num_classes);
  batch.images = (ops::random_uniform(shape, batch.sample_index, kBenchmarkSeed, 0,
                                      RandomPurpose::kTest, at::kCPU) *
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
  return batch;
}

/// Those of this rank in a step.
std::vector<data::Batch> random_batches(const RunConfig& config, const std::vector<int64_t>& shape,
                                        const parallel::Mesh& mesh, at::Device device) {
  const int64_t micro_batch = config.micro_batch(mesh.data_ranks());
  const int64_t own = config.train.global_batch / mesh.data_ranks();
  std::vector<data::Batch> batches;
  for (int64_t done = 0; done < own; done += micro_batch) {
    batches.push_back(
        random_batch(config.model, shape, mesh.data_rank() * own + done, micro_batch, device));
  }
  return batches;
}

/// Of pictures, or clips.
std::vector<int64_t> pixel_shape(const inference::ClipSize& size) {
  if (size.frames == 1) {
    return {3, size.height, size.width};
  }
  return {3, size.frames, size.height, size.width};
}

/// With the device's memory as it was before anything of this was there.
at::Device prepared_device(const RunConfig& config) {
  device::configure_computation(config.train.threads, config.deterministic);
  const at::Device device = inference::choose_device(config.train.device);
  start_memory_anew(device);
  return device;
}

bool sees_pixels(const RunConfig& config) {
  return config.data.source != data::SourceKind::kLatents;
}

models::ModelConfig model_of(const RunConfig& config, const FrozenEncoder* frozen) {
  return inference::resolved_model(
      config, std::max<int64_t>(config.model.num_classes, 1),
      frozen ? std::optional(encoded_size(config.data, frozen->encoder)) : std::nullopt);
}

diffusion::Objective objective_of(const RunConfig& config, at::Device device) {
  diffusion::Objective objective =
      diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(objective, device);
  return objective;
}

}  // namespace

class StepTimer::Impl {
 public:
  Impl(const RunConfig& config, const comm::Group& world)
      : config_(config),
        device_(prepared_device(config)),
        frozen_(sees_pixels(config)
                    ? open_encoder(config.autoencoder, {&config.data, &config.image_data}, device_)
                    : nullptr),
        mesh_(world, config.parallel.mesh()) {
    config_.model = model_of(config, frozen_.get());
    objective_ = objective_of(config_, device_);
    trainable_.emplace(config_, mesh_, device_, kBenchmarkSeed);
    randomise_zeros(trainable_->model().named_parameters(), trainable_->arena());
    graphs_ = use_graphs(config_, trainable_->kernels()) && trainable_->can_be_recorded();
    step_runner_.emplace(trainable_->model(), trainable_->boosted(), objective_, nullptr,
                         StepSettings{.seed = kBenchmarkSeed,
                                      .label_dropout = config_.train.label_dropout,
                                      .model = config_.model,
                                      .frame_masks = config_.frame_masks,
                                      .ranks = mesh_.world().size(),
                                      .device = device_,
                                      .graphs = graphs_});
    stage_.emplace(frozen_ ? &frozen_->encoder : nullptr, nullptr, kBenchmarkSeed, device_);
  }

  [[nodiscard]] StepBenchmark time(const StepBenchmarkOptions& options) {
    const ops::BlockKernels* kernels = trainable_->kernels();
    const int64_t micro_batch = config_.micro_batch(mesh_.data_ranks());
    const data::DataConfig& data = config_.data;
    Steps steps(*this, random_batches(config_,
                                      frozen_ ? pixel_shape({.frames = data.frames,
                                                             .height = data.height,
                                                             .width = data.width})
                                              : config_.model.sample_shape(),
                                      mesh_, device_));
    // Two steps without a graph, the recording, and one that replays it.
    constexpr int64_t kGraphWarmup = 4;
    StepBenchmark result;
    result.device = device::describe(device_);
    result.fast_path = kernels != nullptr;
    result.graphs = graphs_;
    result.step_seconds = steps.time(
        graphs_ ? std::max(options.warmup, kGraphWarmup) : options.warmup, options.steps);
    result.last_loss = steps.last_loss();
    result.peak_memory = device::peak_memory(device_);
    result.kernels = kernel_summary(config_, kernels, micro_batch, device_);
    if (frozen_) {
      result.kernels += ", pixels encoded in each step";
    }
    result.samples_per_s = static_cast<double>(config_.train.global_batch) / result.step_seconds;
    result.model_tflops = 6.0 * models::forward_macs(config_.model) * result.samples_per_s / 1e12;
    if (kernels != nullptr) {
      result.products = kernels->report();
    }
    if (options.profile) {
      result.profile = profile_calls(device_, options.steps, std::ref(steps));
    }
    return result;
  }

  [[nodiscard]] StepCost time(const inference::ClipSize& size, int64_t batch) {
    KINORA_CHECK(models::family_of(config_.model).takes_any_size, kConfig,
                 "[bench] samples of many sizes need a model that takes clips of any size, got ",
                 config_.model.name,
                 ". Hint: ", models::families_that(&models::Family::takes_any_size), " do");
    // The fast path times the ways to compute a product in its first calls.
    const int64_t warmup = trainable_->kernels() != nullptr ? 3 : 1;
    constexpr int64_t kSteps = 3;
    start_memory_anew(device_);
    const bool knows_peak = device_.is_cuda() || start_resident_peak_anew();
    std::vector<data::Batch> batches;
    batches.push_back(
        random_batch(config_.model, pixel_shape(size), mesh_.data_rank() * batch, batch, device_));
    Steps steps(*this, std::move(batches));
    StepCost cost{.seconds = steps.time(warmup, kSteps)};
    if (knows_peak) {
      cost.peak_memory = device_.is_cuda() ? device::peak_memory(device_) : peak_resident_bytes();
    }
    return cost;
  }

 private:
  /// Optimizer steps on the same batches over and over; each call enqueues one.
  class Steps {
   public:
    Steps(Impl& impl, std::vector<data::Batch> batches)
        : impl_(&impl), batches_(std::move(batches)), next_(samples()) {}

    void operator()(int64_t /*call*/) {
      const StepSamples now = std::exchange(next_, samples());  // encoded beside the step now
      impl_->stage_->wait(now);
      loss_ = impl_->step_runner_->forward_backward(now.batches, impl_->step_);
      (void)impl_->trainable_->boosted().enqueue_update(impl_->config_.lr.value, loss_);
      ++impl_->step_;
    }

    /// Seconds of one of `steps` steps behind `warmup` others.
    [[nodiscard]] double time(int64_t warmup, int64_t steps) {
      for (int64_t i = 0; i < warmup; ++i) {
        (*this)(i);
      }
      return median_call_seconds(impl_->device_, steps, std::ref(*this));
    }

    [[nodiscard]] double last_loss() const { return loss_.item<double>(); }

   private:
    [[nodiscard]] StepSamples samples() const {
      StepSamples samples;
      samples.batches = batches_;
      impl_->stage_->begin(samples);
      return samples;
    }

    Impl* impl_;
    std::vector<data::Batch> batches_;
    StepSamples next_;
    at::Tensor loss_;
  };

  RunConfig config_;
  at::Device device_;
  std::unique_ptr<FrozenEncoder> frozen_;
  parallel::Mesh mesh_;
  diffusion::Objective objective_;
  std::optional<Trainable> trainable_;
  bool graphs_ = false;
  std::optional<TrainingStep> step_runner_;
  std::optional<EncodeStage> stage_;
  int64_t step_ = 0;
};

StepTimer::StepTimer(const RunConfig& config, const comm::Group& world)
    : impl_(std::make_unique<Impl>(config, world)) {}
StepTimer::~StepTimer() = default;

StepBenchmark StepTimer::time(const StepBenchmarkOptions& options) {
  return impl_->time(options);
}

StepCost StepTimer::time(const inference::ClipSize& size, int64_t batch) {
  return impl_->time(size, batch);
}

StepBenchmark benchmark_step(const RunConfig& config, const StepBenchmarkOptions& options,
                             const comm::Group& world) {
  return StepTimer(config, world).time(options);
}

}  // namespace kinora::train
