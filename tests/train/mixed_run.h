#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kinora/parallel/sequence_schedule.h"
#include "kinora/train/bench/random_batch.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {

/// Steps of clips and pictures of several sizes.
class MixedRun {
 public:
  MixedRun(const RunConfig& config, const comm::Group& world, at::Device device = at::kCPU)
      : config_(config),
        mesh_(world, config.parallel.mesh()),
        objective_(diffusion::make_objective(config.objective, config.model.learn_sigma)),
        device_(device),
        trainable_(config_, mesh_, device, kSeed),
        step_(trainable_.model(), trainable_.boosted(), objective_, nullptr,
              {.seed = kSeed,
               .label_dropout = 0.3,
               .model = config.model,
               .ranks = mesh_.gradient_ranks(),
               .device = device,
               .divide_among = [this](int64_t ranks) { trainable_.divide_among(ranks); },
               .most_ranks = mesh_.shape().sequence}) {
    diffusion::move_to(objective_, device);
    randomise_zeros(trainable_.model().named_parameters(), trainable_.arena());
    trainable_.arena().reset_averages();
  }

  /// The batches 0 to 4 of a step as they are placed; empty: all on this rank, as usual.
  void step(const std::vector<parallel::PlacedPass>& placed, bool is_bad, Outcome* outcome) {
    const std::vector<data::Batch> all = batches(is_bad);
    SpreadPasses passes;
    std::vector<data::Batch> own;
    for (const parallel::PlacedPass& pass : placed) {
      passes.samples += all[pass.pass].images.size(0);
      if (pass.is_of(mesh_.world().rank())) {
        own.push_back(all[pass.pass]);
        passes.ranks.push_back(pass.ranks);
      }
    }
    trainable_.boosted().begin_update(1e-2);
    const at::Tensor loss = step_.forward_backward(placed.empty() ? all : own, steps_, {}, passes);
    const optim::StepResult result =
        trainable_.optimizer().wait_report(trainable_.boosted().enqueue_update(loss));
    EXPECT_EQ(result.skipped, is_bad);
    if (!is_bad) {
      outcome->losses.push_back(result.loss);
      outcome->norms.push_back(result.grad_norm);
    }
    ++steps_;
  }

  /// Of two steps, and one between them that is skipped.
  Outcome outcome(const std::vector<parallel::PlacedPass>& placed) {
    Outcome outcome;
    for (const bool is_bad : {false, true, false}) {
      step(placed, is_bad, &outcome);
    }
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> averages;
    for (const auto& [path, parameter] : trainable_.model().named_parameters()) {
      weights.push_back(trainable_.arena().export_parameter(path, optim::Role::master()).flatten());
      averages.push_back(
          trainable_.arena().export_parameter(path, optim::Role::average(1)).flatten());
    }
    outcome.weights = at::cat(weights);
    outcome.averages = at::cat(averages);
    return outcome;
  }

 private:
  [[nodiscard]] std::vector<data::Batch> batches(bool is_bad) const {
    const std::vector<std::pair<std::vector<int64_t>, int64_t>> sizes = {
        {{4, 3, 6, 8}, 1}, {{4, 6, 6}, 3}, {{4, 4, 10}, 2}, {{4, 2, 6, 6}, 2}, {{4, 6, 6}, 3}};
    std::vector<data::Batch> batches;
    int64_t first = 100 * steps_;
    for (const auto& [shape, size] : sizes) {
      batches.push_back(random_batch(config_.model, shape, first, size, 0, device_));
      first += size;
    }
    if (is_bad) {
      batches[2].images = at::full(batches[2].images.sizes(), std::nan(""), at::kFloat);
    }
    return batches;
  }

  RunConfig config_;
  parallel::Mesh mesh_;
  diffusion::Objective objective_;
  at::Device device_;
  Trainable trainable_;
  TrainingStep step_;
  int64_t steps_ = 0;
};

}  // namespace kinora::train
