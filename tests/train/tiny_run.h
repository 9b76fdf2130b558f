#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/frozen.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/device/device.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"
#include "tests/models/small_network.h"

namespace kinora::train {

inline constexpr uint64_t kSeed = 7;

/// Six blocks: two buckets of modulation, of which the second is smaller.
inline RunConfig tiny() {
  RunConfig config;
  config.model.transformer.depth = 6;
  config.model.transformer.hidden = 32;
  config.model.transformer.heads = 2;
  config.model.transformer.patch = 2;
  config.model.in_channels = 4;
  config.model.height = 8;
  config.model.width = 8;
  config.model.num_classes = 10;
  config.model.time_scale = 1.0;
  config.model = models::resolved(config.model);
  config.path = inference::Path::kPlain;
  config.train.global_batch = 8;
  config.train.device = DeviceChoice::kCpu;
  config.optim.max_grad_norm = 0.5;
  // Where a gradient is almost zero, AdamW's first updates hang on its last bits.
  config.optim.eps = 1e-2;
  config.ema_decays = {0.9, 0.5};
  return config;
}

inline std::vector<data::Batch> batches_of(const RunConfig& config, const parallel::Mesh& mesh,
                                           int64_t step) {
  const int64_t micro_batch = config.micro_batch(mesh.data_ranks());
  const int64_t own = config.train.global_batch / mesh.data_ranks();
  std::vector<data::Batch> batches;
  for (int64_t done = 0; done < own; done += micro_batch) {
    const int64_t first = step * config.train.global_batch + mesh.data_rank() * own + done;
    data::Batch batch;
    batch.sample_index = at::arange(first, first + micro_batch, at::kLong);
    batch.labels = batch.sample_index.remainder(config.model.num_classes);
    const auto random = [&](std::vector<int64_t> shape, uint32_t number) {
      shape.insert(shape.begin(), micro_batch);
      return ops::random_uniform(shape, batch.sample_index, kSeed, number, RandomPurpose::kTest,
                                 at::kCPU);
    };
    batch.images = random(config.model.sample_shape(), 0);
    if (config.model.takes_text()) {
      batch.text = random({config.model.text_tokens, config.model.text_channels}, 1);
      batch.text_lengths = batch.sample_index.remainder(config.model.text_tokens) + 1;
      if (config.model.pooled_width() > 0) {
        batch.pooled = random({config.model.pooled_width()}, 2);
      }
      batch.fps = at::full({micro_batch}, 8.0, at::kFloat);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

/// A video model whose 9 tokens a frame no even number of ranks divides.
inline RunConfig tiny_video(const std::string& architecture) {
  RunConfig config = tiny();
  config.model = {.architecture = architecture,
                  .in_channels = 4,
                  .frames = 3,
                  .height = 6,
                  .width = 6,
                  .time_scale = 1.0,
                  .text_channels = 8,
                  .text_tokens = 5,
                  .transformer = {.depth = 2, .hidden = 48, .heads = 4}};
  config.model.transformer.patch = architecture == "ltx_video" ? 1 : 2;
  config.model = models::resolved(config.model);
  config.model.num_classes = 1;
  config.frame_masks.image_head = 0.3;
  return config;
}

/// A U-Net of eight blocks.
inline RunConfig tiny_unet() {
  RunConfig config = tiny();
  config.model = {.architecture = "unet",
                  .in_channels = 4,
                  .height = 8,
                  .width = 8,
                  .time_scale = 1.0,
                  .text_channels = 8,
                  .text_tokens = 5};
  models::set_small_network(config.model, 0, 16, 2);
  config.model = models::resolved(config.model);
  config.model.num_classes = 1;
  return config;
}

/// "dit" or "unet", of sizes that fp8 products have.
inline RunConfig tiny_in_fp8(const std::string& family) {
  RunConfig config = family == "dit" ? tiny() : tiny_unet();
  if (family == "dit") {
    config.model.transformer.hidden = 64;
  } else {
    models::set_small_network(config.model, 0, 64, 2);
  }
  config.model = models::resolved(config.model);
  config.precision = Precision::kBf16;
  config.path = inference::Path::kFast;
  config.train.fp8 = true;
  return config;
}

/// What a few steps come to.
struct Outcome {
  std::vector<float> losses;
  std::vector<float> norms;
  at::Tensor weights;
  at::Tensor averages;
};

class TinyRun {
 public:
  TinyRun(const RunConfig& config, const comm::Group& world, at::Device device = at::kCPU,
          bool graphs = false)
      : config_(config),
        device_(device),
        mesh_(world, config.parallel.mesh()),
        objective_(diffusion::make_objective(config.objective, config.model.learn_sigma)),
        trainable(config_, mesh_, device, kSeed),
        step_(trainable.model(), trainable.boosted(), objective_, nullptr,
              {.seed = kSeed,
               .label_dropout = 0.3,
               .model = config.model,
               .ranks = mesh_.gradient_ranks(),
               .device = device,
               .graphs = graphs,
               .graph_limit = {},
               .pipeline = trainable.pipeline()}) {
    diffusion::move_to(objective_, device);
    randomise_zeros(trainable.model().named_parameters(), trainable.arena());
    if (const at::Tensor null = trainable.model().null_caption(); null.defined()) {
      null.fill_(0.5);
    }
    trainable.arena().reset_averages();
  }

  /// The loss of the next step, whose gradients are there. Not finite: its first sample is not.
  at::Tensor forward_backward(bool is_finite = true) {
    trainable.boosted().begin_update(1e-2);
    const std::vector<data::Batch> batches = batches_of(config_, mesh_, steps_);
    if (!is_finite && mesh_.data_rank() == 0) {
      batches.front().images[0].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    return step_.forward_backward(batches, steps_);
  }

  /// The update of that.
  void update(const at::Tensor& loss, Outcome* outcome) {
    const optim::StepResult result =
        trainable.optimizer().wait_report(trainable.boosted().enqueue_update(loss));
    outcome->losses.push_back(result.loss);
    outcome->norms.push_back(result.grad_norm);
    ++steps_;
  }

  void step(Outcome* outcome, bool is_finite = true) {
    update(forward_backward(is_finite), outcome);
  }

  /// A checkpoint in `folder`, which need not be there; its path. All ranks call it, and what
  /// follows.
  std::filesystem::path save(const std::filesystem::path& folder, const comm::Group& world) {
    if (world.rank() == 0) {
      std::filesystem::create_directories(folder);
    }
    world.barrier();
    checkpoint::TrainingState state;
    state.step = steps_;
    state.optimizer = trainable.optimizer().state();
    state.frozen = checkpoint::frozen_of(trainable.arena());
    return checkpoint::save(folder, trainable.arena(), state, world);
  }

  /// From a checkpoint of any layout.
  void resume(const std::filesystem::path& path, const comm::Group& world) {
    const checkpoint::TrainingState state = checkpoint::load(path, trainable.arena(), world);
    trainable.optimizer().restore(state.optimizer);
    steps_ = state.step;
  }

  at::Tensor all(optim::Role role) {
    device::synchronize(device_);  // updates at the host run beside
    std::vector<at::Tensor> values;
    for (const auto& [path, parameter] : trainable.model().named_parameters()) {
      values.push_back(trainable.arena().export_parameter(path, role).flatten());
    }
    return at::cat(values);
  }

 private:
  RunConfig config_;
  at::Device device_;
  parallel::Mesh mesh_;
  diffusion::Objective objective_;

 public:
  Trainable trainable;

 private:
  TrainingStep step_;
  int64_t steps_ = 0;
};

/// Of two steps or more: the second has the state of the first, and the order in which it used the
/// weights.
inline Outcome outcome_of(const RunConfig& config, const comm::Group& world, int steps = 2) {
  TinyRun run(config, world);
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    run.step(&outcome);
  }
  outcome.weights = run.all(optim::Role::master());
  outcome.averages = run.all(optim::Role::average(1));
  return outcome;
}

/// Of one rank without a group: the first of `world` computes it for all.
inline Outcome outcome_of_one(const RunConfig& config, const comm::Group& world) {
  const bool is_first = world.rank() == 0;
  const Outcome own = is_first ? outcome_of(config, {}) : Outcome{};
  at::Tensor size = at::zeros({2}, at::kLong);
  if (is_first) {
    size[0] = static_cast<int64_t>(own.losses.size());
    size[1] = own.weights.numel();
  }
  world.broadcast(size, 0);
  const auto steps = size[0].item<int64_t>();
  const auto shared = [&](const at::Tensor& values, int64_t count) {
    at::Tensor all = is_first ? values.contiguous() : at::empty({count}, at::kFloat);
    world.broadcast(all, 0);
    return all;
  };
  const auto shared_numbers = [&](const std::vector<float>& values) {
    const at::Tensor all = shared(at::tensor(values, at::kFloat), steps);
    return std::vector<float>(all.const_data_ptr<float>(), all.const_data_ptr<float>() + steps);
  };
  const auto numel = size[1].item<int64_t>();
  return {.losses = shared_numbers(own.losses),
          .norms = shared_numbers(own.norms),
          .weights = shared(own.weights, numel),
          .averages = shared(own.averages, numel)};
}

/// The rule, such that roundings stay small. CAME's first steps are some ten times the rate, since
/// its means begin at zero without a correction: at the rate of the others tiny runs diverge. And
/// gradients for keys' biases are zero but for roundings, which it makes as large as others.
inline void set_rule(RunConfig& config, kernels::UpdateRule rule) {
  config.optim.rule = rule;
  if (rule == kernels::UpdateRule::kCame) {
    config.finetune.freeze = {"*.qkv.bias"};
    config.lr_factors.patterns = {"*=0.01"};
  }
}

inline void expect_close(const Outcome& got, const Outcome& want, double tolerance) {
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], tolerance * want.norms[i]) << "step " << i;
  }
  // Updates are of the order of the learning rate, 0.01.
  EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, tolerance))
      << (got.weights - want.weights).abs().max().item<double>();
  EXPECT_TRUE(at::allclose(got.averages, want.averages, 0.0, tolerance));
}

}  // namespace kinora::train
