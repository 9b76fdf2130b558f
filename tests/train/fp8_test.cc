// Training in fp8 on a CPU: the scales, the 8-bit copies and where they lie are those of a GPU, and
// kernels and products are their CPU specifications (tests/ops/host_launch.cc).
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/ops/fp8.h"
#include "tests/comm/ranks.h"
#include "tests/train/frozen_weights.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace fp8_test {

using ops::Fp8Scaling;

RunConfig config_of(const std::string& family, Fp8Scaling scaling = Fp8Scaling::kDelayed) {
  RunConfig config = tiny_in_fp8(family);
  config.train.fp8_scaling = scaling;
  config.deterministic = true;
  return config;
}

/// Four steps, of which the first one measures where scales are delayed.
Outcome outcome_in_fp8(const RunConfig& config, const comm::Group& world) {
  TinyRun run(config, world);
  Outcome outcome;
  for (int i = 0; i < 4; ++i) {
    run.step(&outcome);
  }
  outcome.weights = run.all(optim::Role::master());
  outcome.averages = run.all(optim::Role::average(1));
  return outcome;
}

/// Of scalings, of "dit" and "unet".
void for_each_kind(const std::function<void(const RunConfig& config)>& check) {
  for (const std::string family : {"dit", "unet"}) {
    for (const Fp8Scaling scaling :
         {Fp8Scaling::kDelayed, Fp8Scaling::kCurrent, Fp8Scaling::kBlock}) {
      SCOPED_TRACE(testing::Message() << family << ", scaling " << static_cast<int>(scaling));
      check(config_of(family, scaling));
    }
  }
}

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_TRUE(at::equal(got.weights, want.weights))
      << (got.weights - want.weights).abs().max().item<double>();
}

TEST(Fp8TrainingTest, LearnsNearlyAsIn16Bits) {
  for_each_kind([](RunConfig config) {
    const Outcome got = outcome_in_fp8(config, {});
    config.train.fp8 = false;
    const Outcome want = outcome_in_fp8(config, {});
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 0.01 * want.losses[i]) << "step " << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], 0.05 * want.norms[i]) << "step " << i;
    }
    EXPECT_NE(got.losses.back(), want.losses.back()) << "nothing is in fp8";
  });
}

// A block is quantised when its weights are there, forward and backward, in place of all at once.
TEST(Fp8TrainingTest, WeightsInTheHostsMemoryLearnTheSame) {
  for_each_kind([](RunConfig config) {
    for (const auto& [recompute, micro_batch] : {std::pair("none", 4), std::pair("block", 0)}) {
      SCOPED_TRACE(recompute);
      config.train.recompute = recompute;
      config.train.micro_batch = micro_batch;
      const Outcome want = outcome_in_fp8(config, {});
      for (const double share : {0.5, 1.0}) {
        RunConfig far = config;
        far.optim.offload = share;
        far.optim.offload_weights = share;
        expect_same(outcome_in_fp8(far, {}), want);
      }
    }
  });
}

TEST(Fp8TrainingTest, FrozenWeightsThatTakeTurnsGiveTheGradientsOfWhatTheyStandFor) {
  for_each_kind([](RunConfig config) {
    if (config.train.fp8_scaling == Fp8Scaling::kDelayed) {
      return;  // the first step would only measure
    }
    config.finetune.lora.targets = {"*blocks.*"};
    config.finetune.lora.rank = 8;
    for (const char* recompute : {"none", "block"}) {
      for (const auto& [frozen, offload] : {std::pair{inference::FrozenWeights::kNf4, 0.0},
                                            {inference::FrozenWeights::kFull, 1.0},
                                            {inference::FrozenWeights::kFp8, 0.5}}) {
        SCOPED_TRACE(testing::Message() << recompute << ", " << offload);
        config.train.recompute = recompute;
        RunConfig held = config;
        held.finetune.frozen_weights = frozen;
        held.finetune.offload = offload;
        TinyRun run(held, {});
        load_random(run, 0.05);
        TinyRun full(config, {});
        load_values(run, full);
        const auto got = gradients_of(run);
        for (const auto& [path, gradient] : gradients_of(full)) {
          EXPECT_TRUE(at::equal(got.at(path), gradient)) << path;
        }
      }
    }
  });
}

TEST(Fp8TrainingTest, DividedWeightsLearnAsWholeOnes) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for_each_kind([&world](RunConfig config) {
      config.train.micro_batch = 2;
      config.parallel.zero_stage = 2;
      const Outcome want = outcome_in_fp8(config, world);  // all copies stay
      config.parallel.zero_stage = 3;
      expect_same(outcome_in_fp8(config, world), want);
      config.optim.offload = 1.0;
      config.optim.offload_weights = 1.0;
      expect_same(outcome_in_fp8(config, world), want);
    });
  });
}

// All ranks have the scales of whole operands, but tensor ranks those of their parts of weights.
TEST(Fp8TrainingTest, LayoutsLearnNearlyAsOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    struct Layout {
      const char* name;
      std::function<void(RunConfig& config)> set;
    };
    RunConfig config = config_of("dit");
    config.train.micro_batch = 2;
    const Outcome want = outcome_in_fp8(config, {});
    for (const Layout& layout :
         {Layout{"ddp", [](RunConfig& c) { c.parallel.zero_stage = 0; }},
          Layout{"zero3", [](RunConfig& c) { c.parallel.zero_stage = 3; }},
          Layout{"tensor", [](RunConfig& c) { c.parallel.tp_size = 2; }},
          Layout{"tensor, divided norms",
                 [](RunConfig& c) {
                   c.parallel.tp_size = 2;
                   c.parallel.divided_norms = true;
                 }},
          Layout{"ulysses",
                 [](RunConfig& c) {
                   c.parallel.sp_size = 2;
                   c.parallel.sequence_scheme = parallel::SequenceScheme::kUlysses;
                 }},
          Layout{"ring",
                 [](RunConfig& c) {
                   c.parallel.sp_size = 2;
                   c.parallel.sequence_scheme = parallel::SequenceScheme::kRing;
                 }},
          Layout{"pipeline", [](RunConfig& c) { c.parallel.pp_size = 2; }},
          Layout{"zero bubble", [](RunConfig& c) {
                   c.parallel.pp_size = 2;
                   c.parallel.pp_schedule = parallel::PipelineSchedule::kZeroBubble;
                 }}}) {
      SCOPED_TRACE(layout.name);
      RunConfig divided = config;
      layout.set(divided);
      const Outcome got = outcome_in_fp8(divided, world);
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 2e-4 * want.losses[i]) << "step " << i;
        EXPECT_NEAR(got.norms[i], want.norms[i], 5e-4 * want.norms[i]) << "step " << i;
      }
      EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, 3e-4))
          << (got.weights - want.weights).abs().max().item<double>();
    }
  });
}

}  // namespace fp8_test
}  // namespace kinora::train
