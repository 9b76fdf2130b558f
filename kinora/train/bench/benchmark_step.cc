#include "kinora/train/bench/benchmark_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/core/process_memory.h"
#include "kinora/device/device.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/random_batch.h"
#include "kinora/train/bench/random_encoders.h"
#include "kinora/train/dynamic_sequence.h"
#include "kinora/train/encode_stage.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/plan/memory_budget.h"
#include "kinora/train/setup.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"

namespace kinora::train {
namespace {

constexpr int64_t kTokens = 32000;

/// Those of this rank in a step.
std::vector<data::Batch> random_batches(const RunConfig& config, const std::vector<int64_t>& shape,
                                        const parallel::Mesh& mesh, int64_t text_length,
                                        at::Device device) {
  const int64_t micro_batch = config.micro_batch(mesh.data_ranks());
  const int64_t own = config.train.global_batch / mesh.data_ranks();
  std::vector<data::Batch> batches;
  for (int64_t done = 0; done < own; done += micro_batch) {
    batches.push_back(random_batch(config.model, shape, mesh.data_rank() * own + done, micro_batch,
                                   text_length, device));
  }
  return batches;
}

/// Tokens in the place of the vectors of texts; any numbers of T5's vocabulary.
std::vector<data::Batch> with_tokens(std::vector<data::Batch> batches) {
  for (data::Batch& batch : batches) {
    const int64_t size = batch.text.size(0);
    const int64_t length = batch.text.size(1);
    batch.tokens = at::arange(size * length, at::kLong).remainder(kTokens).view({size, length});
    batch.text.reset();
    batch.pooled.reset();
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

/// `encoder`, if the model takes its states of so many tokens.
const models::T5Config& checked(const models::T5Config& encoder, const models::ModelConfig& model,
                                int64_t tokens) {
  KINORA_CHECK(models::family_of(model).conditions.text && !model.text_encoder.any() &&
                   model.text_channels == encoder.d_model && tokens <= model.text_tokens,
               kConfig, "[bench] texts are encoded for models that take ", tokens, " tokens of ",
               encoder.d_model, " channels (T5-XXL's), got ", models::name_of(model), " with ",
               model.text_tokens, " of ", model.text_channels);
  return encoder;
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
    check_dynamic_sequence(config);
    config_.model = model_of(config, frozen_.get());
    config_ = within_budget(config_, device_, mesh_.world());
    if (!config_.data.buckets.empty()) {
      // A search for batch sizes tries many, whose graphs would fill the memory that it measures.
      config_.kernels.graphs = ops::Switch::kOff;
    }
    objective_ = objective_of(config_, device_);
    trainable_.emplace(config_, mesh_, device_, kBenchmarkSeed);
    randomise_zeros(trainable_->model().named_parameters(), trainable_->arena());
    graphs_ = use_graphs(config_, trainable_->kernels()) && trainable_->can_be_recorded();
    step_runner_.emplace(
        trainable_->model(), trainable_->boosted(), objective_, nullptr,
        StepSettings{.seed = kBenchmarkSeed,
                     .label_dropout = config_.train.label_dropout,
                     .pooled_dropout = config_.train.pooled_dropout,
                     .model = config_.model,
                     .frame_masks = config_.frame_masks,
                     .ranks = mesh_.gradient_ranks(),
                     .device = device_,
                     .graphs = graphs_,
                     .graph_limit = {},
                     .pipeline = trainable_->pipeline(),
                     .divide_among = [this](int64_t ranks) { trainable_->divide_among(ranks); },
                     .most_ranks = mesh_.shape().sequence});
    encoding_ranks_ = encoding_ranks(config_, frozen_.get(), mesh_);
    stage_.emplace(
        kBenchmarkSeed, device_,
        EncodeOptions{.encoder = frozen_ ? &frozen_->encoder : nullptr, .ranks = encoding_ranks_});
  }

  [[nodiscard]] StepBenchmark time(const StepBenchmarkOptions& options) {
    const ops::BlockKernels* kernels = trainable_->kernels();
    const int64_t micro_batch = config_.micro_batch(mesh_.data_ranks());
    const data::DataConfig& data = config_.data;
    std::vector<data::Batch> batches = random_batches(
        config_,
        frozen_ ? pixel_shape({.frames = data.frames, .height = data.height, .width = data.width})
                : config_.model.sample_shape(),
        mesh_, options.encoded_tokens, device_);
    // Two steps without a graph, the recording, and one that replays it.
    constexpr int64_t kGraphWarmup = 4;
    const int64_t warmup = graphs_ ? std::max(options.warmup, kGraphWarmup) : options.warmup;
    StepBenchmark result;
    std::unique_ptr<RandomTexts> texts;
    if (options.encoded_tokens > 0) {
      texts = std::make_unique<RandomTexts>(*this, options);
      result.texts = time_beside(texts->encoder, batches, warmup, options.steps);
      batches = with_tokens(std::move(batches));
    }
    Steps steps(*this, std::move(batches), texts ? texts->stage : *stage_);
    result.device = device::describe(device_);
    result.fast_path = kernels != nullptr;
    result.graphs = graphs_;
    result.step_seconds = steps.time(warmup, options.steps);
    result.last_loss = steps.last_loss();
    result.peak_memory = device::peak_memory(device_);
    result.peak_reserved = device::peak_reserved(device_);
    if (device_.is_cuda()) {
      result.used_memory =
          cuda_device(device_.index()).total_memory - cuda_free_memory(device_.index());
    }
    result.kernels = kernel_summary(config_, kernels, micro_batch, device_);
    if (const optim::FarUpdates* far = trainable_->optimizer().far()) {
      const auto [of_host, all] = far->shares();
      result.far_updates = "of " + std::to_string(all) + " buckets with state off the GPU the " +
                           "host's cores update " + std::to_string(of_host);
    }
    if (frozen_) {
      result.kernels += ", pixels encoded in each step";
      if (encoding_ranks_.size() > 1) {
        result.kernels += " by " + std::to_string(encoding_ranks_.size()) + " ranks together";
      }
    }
    result.samples_per_s = static_cast<double>(config_.train.global_batch) / result.step_seconds;
    result.model_tflops = 6.0 * models::forward_macs(config_.model) * result.samples_per_s / 1e12;
    if (kernels != nullptr) {
      result.products = kernels->report();
    }
    if (options.profile) {
      result.trace = trace_calls(device_, options.steps, std::ref(steps));
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
    const std::vector<int64_t> shape =
        frozen_ ? pixel_shape(size)
                : sample_shape(config_,
                               {.height = size.height, .width = size.width, .frames = size.frames});
    batches.push_back(random_batch(config_.model, shape, mesh_.data_rank() * batch, batch,
                                   /*text_length=*/0, device_));
    Steps steps(*this, std::move(batches), *stage_);
    StepCost cost{.seconds = steps.time(warmup, kSteps)};
    if (knows_peak) {
      cost.peak_memory = device_.is_cuda() ? device::peak_memory(device_) : peak_resident_bytes();
    }
    return cost;
  }

  [[nodiscard]] SpreadBenchmark time_spread(const StepBenchmarkOptions& options) {
    const comm::Group& world = mesh_.world();
    const SecondsOfRows seconds = seconds_by_degree(config_, *step_runner_, device_, world);
    const std::vector<data::Bucket> buckets = largest_of_rows(config_);
    std::vector<data::Batch> batches;
    for (const data::Bucket& bucket : buckets) {
      batches.push_back(random_batch(config_.model, sample_shape(config_, bucket.pixels()),
                                     /*first=*/0, bucket.batch, /*text_length=*/0, device_));
    }
    SpreadBenchmark result{
        .device = device::describe(device_),
        .batches = config_.data.bucket_batches > 0 ? config_.data.bucket_batches : world.size(),
        .seconds = describe(seconds, config_, world.size(), "s"),
        .rows = {SpreadRow{}}};
    for (int64_t ranks = config_.parallel.sp_size; ranks > 0; ranks /= 2) {
      SpreadRow& row = result.rows.emplace_back();
      row.ranks = ranks;
      row.refused = too_large(seconds, buckets, ranks);
    }
    int64_t samples = 0;
    for (int64_t step = -options.warmup; step < options.steps; ++step) {
      std::vector<size_t> kinds;
      for (int64_t i = 0; i < result.batches; ++i) {
        const RandomStream draws{kBenchmarkSeed, static_cast<uint64_t>(i),
                                 static_cast<uint32_t>(step + options.warmup),
                                 RandomPurpose::kTest};
        kinds.push_back(static_cast<size_t>(static_cast<double>(random_uniform(draws, 0)) *
                                            static_cast<double>(buckets.size())));
      }
      int64_t of_step = 0;
      for (const size_t kind : kinds) {
        of_step += buckets[kind].batch;
      }
      samples += step < 0 ? 0 : of_step;
      for (SpreadRow& row : result.rows) {
        if (!row.refused.empty()) {
          continue;
        }
        const std::vector<parallel::PlacedPass> passes =
            row.ranks == 0 ? parallel::schedule_sequences(kinds, seconds, world.size()).passes
                           : in_turn(kinds.size(), row.ranks, world.size());
        // Groups of parallel.sequence ranks that have as many batches are steps as usual, which
        // exchange gradients beside the last backward.
        const bool is_usual =
            row.ranks == config_.parallel.sp_size && result.batches * row.ranks % world.size() == 0;
        const double taken = spread_seconds(batches, kinds, passes, is_usual ? 0 : of_step);
        row.step_seconds += step < 0 ? 0.0 : taken / static_cast<double>(options.steps);
      }
    }
    for (SpreadRow& row : result.rows) {
      if (row.refused.empty()) {
        row.samples_per_s =
            static_cast<double>(samples) / (row.step_seconds * static_cast<double>(options.steps));
        row.slowdown = row.step_seconds / result.rows.front().step_seconds;
      }
    }
    result.peak_memory = device::peak_memory(device_);
    return result;
  }

 private:
  /// The first size that so many ranks cannot compute; empty: there is none.
  static std::string too_large(const SecondsOfRows& seconds,
                               const std::vector<data::Bucket>& buckets, int64_t ranks) {
    const auto degree = static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(ranks)));
    for (size_t row = 0; row < buckets.size(); ++row) {
      if (!std::isfinite(seconds[row][degree])) {
        return buckets[row].text();
      }
    }
    return {};
  }

  /// Groups of `ranks` ranks take passes in turn.
  static std::vector<parallel::PlacedPass> in_turn(size_t passes, int64_t ranks, int64_t world) {
    std::vector<parallel::PlacedPass> placed;
    for (size_t i = 0; i < passes; ++i) {
      placed.push_back(
          {.pass = i, .first_rank = static_cast<int64_t>(i) * ranks % world, .ranks = ranks});
    }
    return placed;
  }

  /// Of an optimizer step, the slowest rank's; samples: SpreadPasses::samples.
  [[nodiscard]] double spread_seconds(const std::vector<data::Batch>& batches,
                                      const std::vector<size_t>& kinds,
                                      const std::vector<parallel::PlacedPass>& passes,
                                      int64_t samples) {
    std::vector<data::Batch> own;
    SpreadPasses spread{.samples = samples};
    for (const parallel::PlacedPass& placed : passes) {
      if (placed.is_of(mesh_.world().rank())) {
        own.push_back(batches[kinds[placed.pass]]);
        spread.ranks.push_back(placed.ranks);
      }
    }
    mesh_.world().barrier();
    const double seconds = median_call_seconds(device_, 1, [&](int64_t /*call*/) {
      Boosted& boosted = trainable_->boosted();
      boosted.begin_update(config_.lr.value);
      (void)boosted.enqueue_update(step_runner_->forward_backward(own, step_, {}, spread));
      ++step_;
    });
    const at::Tensor slowest = at::full({1}, seconds, at::kFloat);
    mesh_.world().all_reduce(slowest, comm::Reduction::kMax);
    return slowest.item<float>();
  }

  /// Optimizer steps on the same batches over and over; each call enqueues one.
  class Steps {
   public:
    Steps(Impl& impl, std::vector<data::Batch> batches, const EncodeStage& stage)
        : impl_(&impl), batches_(std::move(batches)), stage_(&stage), next_(samples()) {}

    void operator()(int64_t /*call*/) {
      const StepSamples now = std::exchange(next_, samples());  // encoded beside the step now
      stage_->wait(now);
      Boosted& boosted = impl_->trainable_->boosted();
      boosted.begin_update(impl_->config_.lr.value);
      loss_ = impl_->step_runner_->forward_backward(now.batches, impl_->step_);
      (void)boosted.enqueue_update(loss_);
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
      stage_->begin(samples);
      return samples;
    }

    Impl* impl_;
    std::vector<data::Batch> batches_;
    const EncodeStage* stage_;
    StepSamples next_;
    at::Tensor loss_;
  };

  /// A text encoder, and the stage that encodes by it.
  struct RandomTexts {
    RandomTexts(const Impl& impl, const StepBenchmarkOptions& options)
        : model(random_t5(
              checked(t5_xxl(options.text_layers), impl.config_.model, options.encoded_tokens),
              impl.device_, inference::compute_type(impl.config_.text.precision))),
          encoder(*model, impl.config_.text.micro_batch > 0 ? impl.config_.text.micro_batch
                                                            : inference::TextOptions::kMicroBatch),
          stage(kBenchmarkSeed, impl.device_,
                {.encoder = impl.frozen_ ? &impl.frozen_->encoder : nullptr,
                 .texts = &encoder,
                 .ranks = impl.encoding_ranks_}) {}

    std::unique_ptr<models::TextEncoder> model;
    pipelines::TextBatchEncoder encoder;
    EncodeStage stage;
  };

  /// Steps on the vectors of `batches`, and encoding as many tokens with nothing beside it.
  [[nodiscard]] TextStepCost time_beside(const pipelines::TextBatchEncoder& encoder,
                                         const std::vector<data::Batch>& batches, int64_t warmup,
                                         int64_t num_steps) {
    Steps steps(*this, batches, *stage_);
    TextStepCost cost{.cached_step_seconds = steps.time(warmup, num_steps)};
    const std::vector<data::Batch> tokens = with_tokens(batches);
    const auto encode = [&](int64_t /*call*/) {
      for (const data::Batch& batch : tokens) {
        (void)encoder.encode(batch.tokens, batch.text_lengths);
      }
    };
    encode(0);
    cost.encoder_seconds = median_call_seconds(device_, num_steps, encode);
    return cost;
  }

  RunConfig config_;
  at::Device device_;
  std::unique_ptr<FrozenEncoder> frozen_;
  parallel::Mesh mesh_;
  comm::Group encoding_ranks_;
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

SpreadBenchmark StepTimer::time_spread(const StepBenchmarkOptions& options) {
  return impl_->time_spread(options);
}

StepBenchmark benchmark_step(const RunConfig& config, const StepBenchmarkOptions& options,
                             const comm::Group& world) {
  return StepTimer(config, world).time(options);
}

}  // namespace kinora::train
