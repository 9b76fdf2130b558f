// Training in fp8 on a CPU: the scales, the 8-bit copies and where they lie are those of a GPU, and
// kernels and products are their CPU specifications (tests/ops/host_launch.cc).
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/ops/fp8.h"
#include "kinora/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/frozen_weights.h"
#include "tests/train/mixed_pictures.h"
#include "tests/train/mixed_run.h"
#include "tests/train/run_lines.h"
#include "tests/train/shared_path.h"
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
  return outcome_of(config, world, /*steps=*/4);
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

// Ranks have other passes in a step than others, and some none.
TEST(Fp8TrainingTest, SizesWithRanksOfTheirOwnLearnNearlyAsOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny_video("stdit3");
    config.model.transformer.hidden = 64;
    config.model = models::resolved(config.model);
    config.precision = Precision::kBf16;
    config.path = inference::Path::kFast;
    config.train.fp8 = true;
    config.deterministic = true;
    const Outcome want = MixedRun(config, {}).outcome({});
    config.dynamic_sequence = true;
    config.parallel.sp_size = 4;
    config.parallel.sequence_scheme = parallel::SequenceScheme::kUlysses;
    for (const int stage : {0, 1}) {
      config.parallel.zero_stage = stage;
      const Outcome got =
          MixedRun(config, world).outcome({{0, 0, 4}, {3, 2, 2}, {2, 0, 1}, {1, 1, 1}, {4, 0, 1}});
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 2e-4 * want.losses[i]) << "step " << i;
        EXPECT_NEAR(got.norms[i], want.norms[i], 5e-4 * want.norms[i]) << "step " << i;
      }
      EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, 3e-4))
          << (got.weights - want.weights).abs().max().item<double>();
    }
  });
}

class Fp8DynamicSequenceTest : public MixedPicturesTest {};

// The passes that are timed at the start leave no magnitudes behind.
TEST_F(Fp8DynamicSequenceTest, AResumeGoesOnWithItsScales) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    const std::filesystem::path folder = shared_path(folder_.path(), world);
    const auto run = [&](const std::string& name, const char* steps) {
      const RunConfig config = this->config(
          folder, name,
          {"parallel.sequence=2", "model.hidden=64", "train.precision=bf16", "model.path=fast",
           "train.fp8=true", "train.deterministic=true", std::string("train.steps=") + steps});
      return Trainer(config, {.mode = Resume::Mode::kAuto, .checkpoint = {}}, world).run();
    };
    EXPECT_TRUE(run("whole", "6").complete);
    (void)run("parts", "3");
    EXPECT_TRUE(run("parts", "6").complete);
    if (world.rank() == 0) {
      const auto got = run_lines(folder / "parts");
      const auto want = run_lines(folder / "whole");
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].at("loss"), want[i].at("loss")) << "line " << i;
      }
    }
  });
}

}  // namespace fp8_test
}  // namespace kinora::train
