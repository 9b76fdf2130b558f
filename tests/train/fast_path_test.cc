#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <memory>

#include "kinora/core/error.h"
#include "kinora/diffusion/objective.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/setup.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"
#include "tests/train/tiny_dit.h"

namespace kinora::train {
namespace fast_path_test {

std::vector<data::Batch> micro_batches() {
  std::vector<data::Batch> batches;
  for (int64_t first = 0; first < 8; first += 4) {
    data::Batch batch;
    batch.sample_index = at::arange(first, first + 4, at::kLong);
    batch.labels = batch.sample_index.remainder(16);
    batch.images = (ops::random_uniform({4, 3, 16, 16}, batch.sample_index, 3, 0,
                                        RandomPurpose::kTest, at::kCPU) *
                    256.0)
                       .to(at::kByte);
    batches.push_back(batch);
  }
  return batches;
}

RunConfig tiny_config() {
  RunConfig config;
  config.model = TinyDit::config();
  return config;
}

std::unique_ptr<Trainable> trainable_on(inference::Path path) {
  RunConfig config = tiny_config();
  config.path = path;
  const parallel::Mesh mesh({}, config.parallel.mesh());
  auto trainable = std::make_unique<Trainable>(config, mesh, at::kCPU, /*seed=*/5);
  randomise_zeros(trainable->model().named_parameters(), trainable->arena());
  return trainable;
}

void add_gradients(Trainable& trainable) {
  const diffusion::Objective objective = diffusion::Iddpm(1000, true);
  TrainingStep step(trainable.model(), trainable.boosted(), objective, nullptr,
                    {.seed = 1, .label_dropout = 0.1, .model = TinyDit::config()});
  (void)step.forward_backward(micro_batches(), 5);
}

// The first micro-batch overwrites what the last step left, the second adds to it.
TEST(FastPathTest, OverwrittenGradientsOfTwoMicroBatchesEqualThePlainPaths) {
  const auto plain = trainable_on(inference::Path::kPlain);
  add_gradients(*plain);
  const auto fast = trainable_on(inference::Path::kFast);
  for (const optim::Bucket& bucket : fast->arena().buckets()) {
    if (!bucket.fp32_island) {
      at::Tensor(bucket.grad).fill_(7.0);
    }
  }
  add_gradients(*fast);
  const auto expected = plain->model().named_parameters();
  const auto got = fast->model().named_parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor difference = got[i].parameter->grad - expected[i].parameter->grad;
    const double scale = expected[i].parameter->grad.norm().item<double>();
    EXPECT_LT(difference.norm().item<double>(), 1e-4 * scale + 1e-7) << expected[i].path;
  }
}

ErrorKind refusal(const RunConfig& config) {
  TinyDit tiny;
  try {
    (void)set_path(tiny.model, config, at::kCPU);
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

TEST(FastPathTest, WhatCannotBeHadIsRefused) {
  RunConfig config = tiny_config();
  config.train.recompute = "mlp";  // of the fast path only, and auto takes the plain one here
  EXPECT_EQ(refusal(config), ErrorKind::kConfig);
  config = tiny_config();
  config.train.fp8 = true;
  EXPECT_EQ(refusal(config), ErrorKind::kConfig);
  config.path = inference::Path::kFast;
  EXPECT_EQ(refusal(config), ErrorKind::kConfig);  // no fp8 on a CPU
  config = tiny_config();
  config.path = inference::Path::kFast;
  config.kernels.attention = ops::Switch::kOn;
  EXPECT_EQ(refusal(config), ErrorKind::kConfig);
}

TEST(FastPathTest, AutoTakesThePlainPathOnTheCpu) {
  TinyDit tiny;
  RunConfig config = tiny_config();
  EXPECT_EQ(set_path(tiny.model, config, at::kCPU), nullptr);
  config.path = inference::Path::kFast;
  config.train.recompute = "elementwise";
  EXPECT_NE(set_path(tiny.model, config, at::kCPU), nullptr);
}

}  // namespace fast_path_test
}  // namespace kinora::train
