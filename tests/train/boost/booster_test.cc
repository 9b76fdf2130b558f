// A torch::nn::Module trained by the Booster against libtorch's own AdamW, and ranks against one.
#include "kinora/train/boost/booster.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <filesystem>

#include "kinora/core/error.h"
#include "kinora/data/loader.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/boost/torch_module.h"
#include "kinora/train/trainable.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/boost/torch_net.h"
#include "tests/train/tiny_dit.h"

namespace kinora::train {
namespace booster_test {

using testing::HasSubstr;

/// What libtorch's optimizer makes of it.
void train_by_libtorch(Net& net, int64_t passes, double clip) {
  // As the Booster sees it: a weight decays even where it never had a gradient.
  std::vector<at::Tensor> parameters = {net.first, net.bias, net.second, net.branch, net.unused};
  torch::optim::AdamW optimizer(parameters,
                                torch::optim::AdamWOptions(kLr).weight_decay(kWeightDecay));
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      (loss_of(net, step * passes + pass) / passes).backward();
    }
    if (clip > 0.0) {
      torch::nn::utils::clip_grad_norm_(parameters, clip);
    }
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/false);
  }
}

/// Largest over the parameters of the distance, relative to the parameter's norm.
double difference(const Net& got, const Net& want) {
  double largest = 0.0;
  const auto expected = want.named_parameters();
  for (const auto& named : got.named_parameters()) {
    const at::Tensor reference = expected[named.key()].detach().to(at::kDouble);
    const at::Tensor distance = named.value().detach().to(at::kDouble) - reference;
    largest = std::max(largest, (distance.norm() / reference.norm()).item<double>());
  }
  return largest;
}

/// What a Booster asks of a module, in several buckets.
TorchModuleOptions small(const BoosterOptions& options, const comm::Group& world) {
  TorchModuleOptions module = Booster(options, world).module_options();
  module.bucket_bytes = 100;
  return module;
}

struct Way {
  int64_t passes;
  double clip;
};

class BoosterWayTest : public testing::TestWithParam<Way> {};

TEST_P(BoosterWayTest, EqualsLibtorchsAdamW) {
  const auto [passes, clip] = GetParam();
  Net want;
  train_by_libtorch(want, passes, clip);
  for (const int64_t bucket_bytes : {int64_t{100}, kBucketBytes}) {
    Net net;
    BoosterOptions options = fp32();
    options.grad_clip = clip;
    Boosted boosted = Booster(options).boost(torch_module(net, {.bucket_bytes = bucket_bytes}),
                                             adamw(), constant());
    EXPECT_EQ(boosted.arena().buckets().size(), bucket_bytes == kBucketBytes ? 1U : 5U);
    const auto results = train(net, boosted, passes);
    if (clip > 0.0) {
      EXPECT_GT(results.front().grad_norm, clip) << "clipping is not seen";
    }
    EXPECT_LT(difference(net, want), 1e-6);
    EXPECT_EQ(net.calls.item<int64_t>(), kSteps * passes);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, BoosterWayTest,
                         testing::Values(Way{1, 0.0}, Way{3, 0.0}, Way{1, 0.2}, Way{2, 0.2}),
                         [](const auto& info) {
                           return "passes" + std::to_string(info.param.passes) +
                                  (info.param.clip > 0.0 ? "_clipped" : "");
                         });

TEST(BoosterTest, ReportsTheMeanLossAndNorm) {
  Net reference;
  const at::Tensor loss = (loss_of(reference, 0) + loss_of(reference, 1)) / 2;
  loss.backward();
  double squares = 0.0;
  for (const at::Tensor& parameter : reference.parameters()) {
    if (parameter.grad().defined() && !parameter.is_same(reference.tied)) {
      squares += parameter.grad().square().sum().item<double>();
    }
  }
  squares += reference.first.grad().square().sum().item<double>();
  Net net;
  Boosted boosted = Booster(fp32()).boost(net, adamw(), constant());
  const optim::StepResult result = train(net, boosted, 2).front();
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-6 * loss.item<double>());
  EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
  EXPECT_FALSE(result.skipped);
}

TEST(BoosterTest, SixteenBitCopiesKeepMasterAndGradientsInFp32) {
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    Net want;
    train_by_libtorch(want, 2, 0.0);
    Net net;
    BoosterOptions options = fp32();
    options.precision = precision;
    Boosted boosted = Booster(options).boost(net, adamw(), constant());
    const at::ScalarType type = precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf;
    EXPECT_EQ(net.first.scalar_type(), type);
    EXPECT_EQ(net.frozen.scalar_type(), type);
    EXPECT_EQ(net.calls.scalar_type(), at::kLong);
    const auto results = train(net, boosted, 2);
    EXPECT_LT(results.back().loss, 0.9F * results.front().loss);
    EXPECT_LT(difference(net, want), 0.1);
    const at::Tensor master = boosted.arena().export_parameter("second", optim::Role::master());
    EXPECT_TRUE(at::equal(master.to(type), net.second));
    EXPECT_FALSE(at::equal(master, net.second.to(at::kFloat)));
    EXPECT_FALSE(net.second.grad().defined());
  }
}

class BoosterRanksTest : public testing::TestWithParam<const char*> {};

TEST_P(BoosterRanksTest, EqualOneRankThatAccumulates) {
  const std::string plugin = GetParam();
  comm::run_on_ranks(2, [&plugin](const comm::Group& world) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      for (const bool reduce_each : {true, false}) {
        for (const int64_t passes : {1, 2}) {
          SCOPED_TRACE("passes " + std::to_string(passes) + (reduce_each ? ", each" : ", once"));
          BoosterOptions options = fp32();
          options.precision = precision;
          options.grad_clip = 0.2;
          const optim::OptimizerConfig config{.eps = 1e-3};  // so that last bits stay last bits
          Net alone;
          Boosted one = Booster(options).boost(torch_module(alone, {.bucket_bytes = 100}), config,
                                               constant());
          // The ranks of zero3 go through the same layers.
          const int64_t run = plugin == "zero3" ? 2 : 1;
          const auto want = train(alone, one, 2 * passes, 1, 0, run);
          options.plugin = plugin;
          options.plugin_config.reduce_each_micro_batch = reduce_each;
          Net net;
          net.first.data().add_(static_cast<double>(world.rank()));  // rank 0's counts
          net.calls.add_(world.rank());
          Boosted boosted =
              Booster(options, world)
                  .boost(torch_module(net, small(options, world)), config, constant());
          EXPECT_EQ(net.calls.item<int64_t>(), 0);
          const auto got = train(net, boosted, passes, 2, world.rank(), run);
          EXPECT_LT(difference(net, alone), precision == Precision::kFp32 ? 1e-6 : 2e-3);
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_NEAR(got[i].loss, want[i].loss, 2e-3 * want[i].loss);
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Plugins, BoosterRanksTest,
                         testing::Values("ddp", "zero1", "zero2", "zero3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BoosterTest, Zero2DividesStateAndGradientsAndSavesTheWhole) {
  const std::string path = testing::TempDir() + "kinora-booster-zero2.safetensors";
  const std::string folder = testing::TempDir() + "kinora-booster-zero2";
  comm::run_on_ranks(2, [&path, &folder](const comm::Group& world) {
    BoosterOptions options = fp32();
    options.plugin = "zero2";
    Net net;
    Boosted boosted = Booster(options, world)
                          .boost(torch_module(net, small(options, world)), adamw(), constant());
    for (const optim::Bucket& bucket : boosted.arena().buckets()) {
      EXPECT_FALSE(bucket.owns_grad);
      EXPECT_EQ(bucket.slice_numel * 2, bucket.numel);
    }
    (void)train(net, boosted, 1, 2, world.rank());
    boosted.save_model(path);
    Net other;
    other.second.data().zero_();
    Boosted alone =
        Booster(fp32()).boost(torch_module(other, {.bucket_bytes = 100}), adamw(), constant());
    alone.load_model(path);
    EXPECT_EQ(difference(other, net), 0.0);
    // What two ranks have saved one goes on from.
    const std::filesystem::path state = boosted.save_optimizer(folder);
    alone.load_optimizer(state);
    EXPECT_EQ(alone.steps(), boosted.steps());
    for (const optim::Role role : boosted.arena().state_roles()) {
      EXPECT_TRUE(at::equal(alone.arena().export_parameter("first", role),
                            boosted.arena().export_parameter("first", role)));
    }
  });
  std::error_code ignored;  // every rank comes here
  std::filesystem::remove(path, ignored);
  std::filesystem::remove_all(folder, ignored);
}

TEST(BoosterTest, Zero3BringsWeightsTogetherWhereTheyAreRead) {
  const std::string path = testing::TempDir() + "kinora-booster-zero3.safetensors";
  const std::string folder = testing::TempDir() + "kinora-booster-zero3";
  comm::run_on_ranks(2, [&path, &folder](const comm::Group& world) {
    BoosterOptions options = fp32();
    options.plugin = "zero3";
    Net net;
    at::Tensor left;
    {
      Boosted boosted = Booster(options, world)
                            .boost(torch_module(net, small(options, world)), adamw(), constant());
      for (const optim::Bucket& bucket : boosted.arena().buckets()) {
        EXPECT_FALSE(bucket.owns_compute);
        EXPECT_FALSE(bucket.owns_grad);
      }
      (void)train(net, boosted, 2, 2, world.rank(), 2);
      // Between steps, too, also of a pass that never comes to backward.
      EXPECT_TRUE(
          at::equal(net.second, boosted.arena().export_parameter("second", optim::Role::master())));
      (void)loss_of(net, 0);
      (void)train(net, boosted, 2, 2, world.rank(), 2);
      const at::NoGradGuard no_grad;
      boosted.save_model(path);
      Net other;
      Boosted alone = Booster(fp32()).boost(other, adamw(), constant());
      alone.load_model(path);
      EXPECT_EQ(difference(net, other), 0.0);
      EXPECT_EQ(loss_of(net, 0).item<float>(), loss_of(other, 0).item<float>());
      const std::filesystem::path state = boosted.save_optimizer(folder);
      alone.load_optimizer(state);
      // Back to what it has saved, after other steps.
      {
        const at::AutoGradMode grad(true);
        (void)train(net, boosted, 2, 2, world.rank(), 2);
      }
      EXPECT_GT(difference(net, other), 0.0);
      boosted.load_model(path);
      EXPECT_EQ(difference(net, other), 0.0);
      boosted.load_optimizer(state);
      EXPECT_EQ(difference(net, other), 0.0);
      const at::AutoGradMode grad(true);
      EXPECT_THAT(error_of(ErrorKind::kConfig,
                           [&] {
                             return at::dot(net.first.flatten().narrow(0, 0, 9),
                                            net.second.flatten().narrow(0, 0, 9));
                           }),
                  HasSubstr("take turns in one buffer of zero3"));
      left = loss_of(net, 0, 2);
    }
    EXPECT_EQ(net.second.numel(), 0);
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           left.backward();
                           return 0;
                         }),
                HasSubstr("keep the Boosted as long as its losses"));
  });
  std::error_code ignored;  // every rank comes here
  std::filesystem::remove(path, ignored);
  std::filesystem::remove_all(folder, ignored);
}

TEST(BoosterTest, GoesOnFromWhatItSaved) {
  const std::filesystem::path folder = testing::TempDir() + "kinora-booster";
  std::filesystem::remove_all(folder);
  BoosterOptions options = fp32();
  options.precision = Precision::kBf16;
  options.ema_decays = {0.9};
  optim::LrSchedule schedule = constant();
  schedule.warmup = 15;
  Net net;
  Boosted boosted = Booster(options).boost(net, adamw(), schedule);
  EXPECT_TRUE(at::equal(boosted.arena().export_parameter("first", optim::Role::average(0)),
                        boosted.arena().export_parameter("first", optim::Role::master())));
  (void)train(net, boosted, 1);
  std::filesystem::create_directories(folder);
  boosted.save_model(folder / "model.safetensors");
  const std::filesystem::path state = boosted.save_optimizer(folder);
  (void)train(net, boosted, 1);

  Net other;
  other.first.data().zero_();
  Boosted resumed = Booster(options).boost(other, adamw(), schedule);
  resumed.load_model(folder / "model.safetensors");
  EXPECT_EQ(other.calls.item<int64_t>(), kSteps);
  resumed.load_optimizer(state);
  EXPECT_EQ(resumed.steps(), kSteps);
  (void)train(other, resumed, 1);
  for (const optim::Role role : boosted.arena().state_roles()) {
    for (const char* path : {"first", "second", "unused"}) {
      EXPECT_TRUE(at::equal(resumed.arena().export_parameter(path, role),
                            boosted.arena().export_parameter(path, role)))
          << path << " " << optim::to_string(role);
    }
  }
  EXPECT_TRUE(at::equal(other.first, net.first));

  boosted.save_model(folder / "average.safetensors", optim::WeightSet::average(0));
  Net averaged;
  Boosted sampler = Booster(fp32()).boost(averaged, adamw(), schedule);
  sampler.load_model(folder / "average.safetensors");
  EXPECT_TRUE(at::equal(averaged.second,
                        boosted.arena().export_parameter("second", optim::Role::average(0))));
  std::filesystem::remove_all(folder);
}

TEST(BoosterTest, LeavesTheModuleToItsOwner) {
  Net net;
  {
    Boosted boosted = Booster(fp32()).boost(net, adamw(), constant());
    loss_of(net, 0).backward();  // not for the Booster
    EXPECT_TRUE(net.second.grad().defined());
    (void)train(net, boosted, 1);
  }
  EXPECT_FALSE(net.second.grad().defined());
  loss_of(net, 0).backward();
  EXPECT_TRUE(net.second.grad().defined());
  Boosted again = Booster(fp32()).boost(net, adamw(), constant());
  EXPECT_FALSE(net.second.grad().defined());
}

/// Losses of a few steps of a DiT in a loop of one's own: micro-batches of two samples.
std::vector<float> losses_of_dit(const RunConfig& config, const comm::Group& world,
                                 int64_t passes) {
  const parallel::Mesh mesh(world, config.parallel.mesh());
  Trainable trainable(config, mesh, at::kCPU, /*seed=*/5);
  randomise_zeros(trainable.model().named_parameters(), trainable.arena());
  Boosted& boosted = trainable.boosted();
  boosted.accumulate(passes);
  std::vector<float> losses;
  for (int64_t step = 0; step < 4; ++step) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t index = (step * passes + pass) * world.size() + world.rank();
      const at::Tensor x = (at::arange(2 * 3 * 16 * 16, at::kFloat).view({2, 3, 16, 16}) * 0.1 +
                            static_cast<double>(index))
                               .sin();
      const diffusion::Pass begun = boosted.begin();
      boosted.backward(
          trainable.model()
              .forward(x, at::full({2}, 100.0F), {.labels = at::full({2}, index % 16)}, begun)
              .square()
              .mean());
    }
    losses.push_back(boosted.step().loss);
  }
  return losses;
}

TEST(BoosterTest, TakesKinorasModelsToZero3) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config;
    config.model = TinyDit::config();
    config.train.device = DeviceChoice::kCpu;
    config.lr.value = 1e-2;
    config.optim.eps = 1e-2;
    for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
      config.path = path;
      config.plugin.clear();
      const std::vector<float> want = losses_of_dit(config, {}, 4);
      EXPECT_LT(want.back(), 0.9F * want.front());
      config.plugin = "zero3";
      EXPECT_THAT(losses_of_dit(config, world, 2),
                  testing::Pointwise(testing::FloatNear(1e-4F), want));
    }
  });
}

TEST(BoosterTest, GivesALoaderItsPart) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const data::LoaderOptions options = Booster(fp32(), world).boost(data::LoaderOptions());
    EXPECT_EQ(options.rank, world.rank());
    EXPECT_EQ(options.num_ranks, 2);
    EXPECT_FALSE(options.pinned);
  });
}

}  // namespace booster_test
}  // namespace kinora::train
