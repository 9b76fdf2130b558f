// Low-rank updates of frozen weights in few bits, or in the host's memory, against updates of the
// weights that these stand for.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/optim/held_weights.h"
#include "kinora/train/finetune.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/frozen_weights.h"
#include "tests/train/tiny_families.h"

namespace kinora::train {
namespace frozen_weights_test {

using inference::FrozenWeights;
using testing::HasSubstr;

struct Holding {
  const char* name;
  FrozenWeights weights;
  double offload;
  bool always;  // also where blocks are computed again
};
constexpr Holding kHoldings[] = {
    {"int8", FrozenWeights::kInt8, 0.0, false},
    {"full, half", FrozenWeights::kFull, 0.5, false},
    {"full, all", FrozenWeights::kFull, 1.0, false},
    {"nf4, half", FrozenWeights::kNf4, 0.5, true},
};

struct Case {
  std::string name;
  RunConfig config;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string family :
       {"dit", "vdit", "latte", "stdit", "stdit2", "cogvideox", "unet"}) {
    for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
      for (const std::string recompute : {"none", "block:2", "block"}) {
        RunConfig config =
            family == "dit" ? tiny() : (family == "unet" ? tiny_unet() : tiny_of(family));
        config.path = path;
        config.train.recompute = recompute;
        config.train.micro_batch = 4;
        config.optim.max_grad_norm = 0.0;
        config.finetune.lora.targets = {family == "unet" ? "*_blocks.*" : "blocks.*"};
        config.finetune.lora.rank = 2;
        if (family == "unet") {
          config.finetune.lora.conv_rank = 2;
        } else if (family == "cogvideox") {  // forward alone reads what modulates its blocks
          config.finetune.lora.targets = {"blocks.*.attn.*", "blocks.*.mlp.*"};
        } else if (family != "dit" && family != "vdit") {
          config.finetune.lora.targets = {"*blocks.*"};
        }
        all.push_back(
            {family + (path == inference::Path::kFast ? ", fast, " : ", plain, ") + recompute,
             config});
      }
    }
  }
  return all;
}

TEST(FrozenWeightsTest, GradientsOfUpdatesAreThoseOverWhatTheyStandFor) {
  for (const auto& [name, config] : cases()) {
    for (const Holding& holding : kHoldings) {
      if (config.train.recompute != "none" && !holding.always) {
        continue;
      }
      SCOPED_TRACE(name + ", " + holding.name);
      RunConfig held = config;
      held.finetune.frozen_weights = holding.weights;
      held.finetune.offload = holding.offload;
      TinyRun run(held, {});
      load_random(run);
      ASSERT_NE(run.trainable.arena().held(), nullptr);
      EXPECT_EQ(run.trainable.arena().held()->host_bytes() > 0, holding.offload > 0.0);
      TinyRun full(config, {});
      ASSERT_EQ(full.trainable.arena().held(), nullptr);
      load_values(run, full);
      const auto got = gradients_of(run);
      const auto want = gradients_of(full);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [path, gradient] : want) {
        EXPECT_TRUE(at::equal(got.at(path), gradient))
            << path << ": " << (got.at(path) - gradient).abs().max().item<float>() << " of "
            << gradient.abs().max().item<float>();
      }
    }
  }
}

TEST(FrozenWeightsTest, HalfPrecisionAndUpdatesOfOtherKindsToo) {
  for (const nn::UpdateKind kind : {nn::UpdateKind::kLora, nn::UpdateKind::kLoha}) {
    for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
      RunConfig config = tiny_unet();
      config.precision = precision;
      config.finetune.lora.targets = {"*_blocks.*"};
      config.finetune.lora.kind = kind;
      RunConfig few_bits = config;
      few_bits.finetune.frozen_weights = FrozenWeights::kNf4;
      TinyRun run(few_bits, {});
      load_random(run);
      TinyRun full(config, {});
      load_values(run, full);
      const auto got = gradients_of(run);
      for (const auto& [path, gradient] : gradients_of(full)) {
        EXPECT_TRUE(at::equal(got.at(path), gradient)) << path;
      }
    }
  }
}

// Their weights must be where they compute.
TEST(FrozenWeightsTest, TheHostDoesNotMultiplyForBlocksThatModulateThemselves) {
  EXPECT_TRUE(has_host_products(tiny_of("dit"), 1));
  EXPECT_TRUE(has_host_products(tiny_of("flux"), 1));
  EXPECT_FALSE(has_host_products(tiny_of("cogvideox"), 1));
}

TEST(FrozenWeightsTest, RanksLearnAsOne) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (RunConfig config : {tiny(), tiny_unet()}) {
      config.finetune.lora.targets = {"*blocks.*"};
      config.finetune.frozen_weights = FrozenWeights::kNf4;
      const auto outcome_on = [&config](const comm::Group& ranks) {
        TinyRun run(config, ranks);
        load_random(run);
        Outcome outcome;
        for (int i = 0; i < 3; ++i) {
          run.step(&outcome);
        }
        outcome.weights = run.all(optim::Role::master());
        outcome.averages = run.all(optim::Role::average(1));
        return outcome;
      };
      const Outcome want = outcome_on({});
      for (const int64_t stage : {0, 3}) {
        for (const int64_t bucket_mib : {0, 1}) {  // groups of blocks
          config.parallel.zero_stage = stage;
          config.parallel.bucket_mib = bucket_mib;
          expect_close(outcome_on(world), want, 2e-5);
        }
      }
      if (config.model.architecture == "dit") {
        config.parallel.sp_size = 2;
        config.finetune.offload = 0.5;
        expect_close(outcome_on(world), want, 2e-5);
      }
    }
  });
}

// The device holds codes and rooms, in place of weights.
TEST(FrozenWeightsTest, TakeTheBytesOfTheirCodes) {
  RunConfig config = tiny_unet();
  config.finetune.lora.targets = {"*_blocks.*"};
  const TinyRun full(config, {});
  config.finetune.frozen_weights = FrozenWeights::kNf4;
  const TinyRun run(config, {});
  const optim::HeldWeights& quantised = *run.trainable.arena().held();
  const int64_t elements = quantised.num_elements();
  EXPECT_GT(elements, full.trainable.arena().num_frozen() / 2);
  const double code_bytes = static_cast<double>(quantised.code_bytes());
  EXPECT_NEAR(code_bytes, static_cast<double>(elements) * (0.5 + 4.0 / 64.0), 0.02 * code_bytes);
  EXPECT_LE(run.trainable.arena().bytes(optim::Role::compute()) + 4 * elements,
            full.trainable.arena().bytes(optim::Role::compute()));
  EXPECT_EQ(run.trainable.arena().num_frozen(), full.trainable.arena().num_frozen());
}

// The host holds a share, and the device two rooms of the largest block.
TEST(FrozenWeightsTest, OfThoseInTheHostsMemoryTheDeviceHasRoomForTwoBlocks) {
  RunConfig config = tiny_unet();
  config.finetune.lora.targets = {"*_blocks.*"};
  config.finetune.offload = 1.0;
  const TinyRun run(config, {});
  const optim::HeldWeights& all = *run.trainable.arena().held();
  EXPECT_GE(all.host_bytes(), 4 * all.num_elements());
  EXPECT_LT(all.host_bytes(), 4 * all.num_elements() * 102 / 100);  // slots lie on 256 elements
  EXPECT_EQ(all.code_bytes(), 0);
  EXPECT_LT(all.room_bytes(), all.host_bytes());
  config.finetune.offload = 0.5;
  const TinyRun half_run(config, {});
  const optim::HeldWeights& half = *half_run.trainable.arena().held();
  EXPECT_NEAR(static_cast<double>(half.host_bytes()), 0.5 * static_cast<double>(all.host_bytes()),
              0.2 * static_cast<double>(all.host_bytes()));
  EXPECT_LT(half.num_elements(), all.num_elements());
}

TEST(FrozenWeightsTest, WithoutAFrozenBlockTheyAreRefused) {
  RunConfig config = tiny();
  config.finetune.train = {"blocks.*"};
  config.finetune.frozen_weights = FrozenWeights::kInt8;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return TinyRun(config, {}).trainable.kernels(); }),
              HasSubstr("no weight that is frozen"));
}

}  // namespace frozen_weights_test
}  // namespace kinora::train
