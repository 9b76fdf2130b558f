// Training on several ranks against one rank with the same global batch, and what they exchange
// against closed forms (Rajbhandari et al. 2020, "ZeRO", section 7).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>

#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/tiny_families.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace ranks_test {

constexpr double kRounding = 2e-5;  // of sums in another order

class RanksTest : public testing::TestWithParam<int64_t> {};

TEST_P(RanksTest, EveryStageEqualsOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
      RunConfig config = tiny();
      config.path = path;
      const Outcome want = outcome_of_one(config, world);
      ASSERT_GT(want.norms[0], config.optim.max_grad_norm) << "clipping is not seen";
      struct Case {
        int64_t stage;
        int64_t micro_batch;  // 0: all at once
        bool reduce_each;
      };
      for (const Case& c : {Case{0, 0, true}, Case{0, 1, true}, Case{1, 1, true}, Case{2, 0, true},
                            Case{2, 1, true}, Case{2, 1, false}, Case{3, 0, true}, Case{3, 1, true},
                            Case{3, 1, false}}) {
        SCOPED_TRACE("path " + std::to_string(static_cast<int>(path)) + ", stage " +
                     std::to_string(c.stage) + ", micro-batch " + std::to_string(c.micro_batch) +
                     (c.reduce_each ? ", reduced each" : ", reduced once"));
        config.parallel.zero_stage = c.stage;
        config.train.micro_batch = c.micro_batch;
        config.parallel.reduce_each_micro_batch = c.reduce_each;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
  });
}

TEST_P(RanksTest, RecomputationAndHalfTypesEqualOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      RunConfig config = tiny();
      config.parallel.zero_stage = stage;
      config.train.recompute = "block:4";
      expect_close(outcome_of(config, world), outcome_of_one(config, world), kRounding);
      config.precision = Precision::kBf16;
      const Outcome alone = outcome_of_one(config, world);
      // Other micro-batches round to bf16 at other places.
      expect_close(outcome_of(config, world), alone, 2e-2);
      config.precision = Precision::kFp32;
      config.parallel.reduce_type = Precision::kBf16;
      expect_close(outcome_of(config, world), outcome_of_one(config, world), 1e-2);
    }
  });
}

void expect_same_bits_in_stages(RunConfig config, const comm::Group& world) {
  config.optim.max_grad_norm = 0.0;  // the norm is summed in another order
  const Outcome want = outcome_of(config, world);
  for (const int stage : {1, 2, 3}) {
    config.parallel.zero_stage = stage;
    const Outcome got = outcome_of(config, world);
    EXPECT_EQ(got.losses, want.losses) << "stage " << stage;
    EXPECT_TRUE(at::equal(got.weights, want.weights)) << "stage " << stage;
    EXPECT_TRUE(at::equal(got.averages, want.averages)) << "stage " << stage;
  }
}

TEST_P(RanksTest, StagesGiveTheSameBits) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    expect_same_bits_in_stages(tiny(), world);
    RunConfig small = tiny();
    small.precision = Precision::kBf16;
    small.optim.moments = kernels::MomentFormat::k8Bit;
    small.optim.masters = kernels::MasterFormat::kBF16;
    expect_same_bits_in_stages(small, world);
    RunConfig muon = tiny();
    muon.optim.rule = kernels::UpdateRule::kMuon;
    expect_same_bits_in_stages(muon, world);
    RunConfig schedule_free = tiny();
    schedule_free.optim.rule = kernels::UpdateRule::kScheduleFree;
    expect_same_bits_in_stages(schedule_free, world);
  });
}

TEST_P(RanksTest, RulesThatSumOverParametersEqualOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    for (const auto rule : {kernels::UpdateRule::kAdafactor, kernels::UpdateRule::kCame,
                            kernels::UpdateRule::kLamb, kernels::UpdateRule::kProdigy}) {
      RunConfig config = tiny();
      set_rule(config, rule);
      config.optim.d0 = 0.5;  // so that little follows from the small rate
      // Their gradients for keys are zero but for roundings, which such rules make as large as
      // others.
      config.finetune.freeze = {"*.qkv.bias"};
      const Outcome want = outcome_of_one(config, world);
      for (const int64_t stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::string(optim::to_string(rule)) + ", stage " + std::to_string(stage));
        config.parallel.zero_stage = stage;
        const Outcome got = outcome_of(config, world);
        for (size_t i = 0; i < want.losses.size(); ++i) {
          EXPECT_NEAR(got.losses[i], want.losses[i], 1e-4 * want.losses[i]);
          EXPECT_NEAR(got.norms[i], want.norms[i], 1e-3 * want.norms[i]);
        }
        EXPECT_LE((got.weights - want.weights).abs().mean().item<double>(), 1e-4);
      }
    }
  });
}

TEST_P(RanksTest, FineTuningEqualsOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    const auto tuned = [](int kind) {
      RunConfig config = tiny();
      config.lr_factors.layer_decay = 0.8;
      if (kind == 0) {
        config.finetune.freeze = {"x_embedder.*", "blocks.0.*", "blocks.3.attn.*", "*.bias"};
      } else {
        config.finetune.lora.targets = {"blocks.*.attn.*", "blocks.1.adaLN_modulation.1"};
        config.finetune.lora.dora = kind == 2;
        config.finetune.train = {"y_embedder.*"};
      }
      return config;
    };
    for (const int kind : {0, 1, 2}) {
      const Outcome want = outcome_of_one(tuned(kind), world);
      for (const int64_t stage : {0, 1, 2, 3}) {
        for (const std::string recompute : {"none", "block:4"}) {
          SCOPED_TRACE("kind " + std::to_string(kind) + ", stage " + std::to_string(stage) +
                       ", recompute " + recompute);
          RunConfig config = tuned(kind);
          config.parallel.zero_stage = stage;
          config.train.recompute = recompute;
          config.train.micro_batch = 2;
          config.parallel.bucket_mib = stage == 0 ? 1 : 0;  // groups of blocks
          expect_close(outcome_of(config, world), want, kRounding);
        }
      }
    }
  });
}

// As in large models they fill their buckets (of 12,288 elements here), so that backward overwrites
// all of a bucket's gradients.
TEST_P(RanksTest, UpdatesAloneInTheirBucketsEqualOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    RunConfig config = tiny();
    config.model.transformer.hidden = 96;
    config.model = models::resolved(config.model);
    config.path = inference::Path::kFast;
    config.finetune.lora.targets = {"blocks.*.attn.*", "blocks.*.mlp.*"};
    config.finetune.lora.rank = 8;
    const Outcome want = outcome_of_one(config, world);
    const TinyRun run(config, {});
    for (const optim::Bucket& bucket : run.trainable.arena().buckets()) {
      ASSERT_EQ(bucket.slots.back().offset + bucket.slots.back().numel, bucket.numel);
    }
    for (const int64_t stage : {1, 2, 3}) {
      for (const int64_t micro_batch : {1, 2}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", micro-batch " +
                     std::to_string(micro_batch));
        config.parallel.zero_stage = stage;
        config.train.micro_batch = micro_batch;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
  });
}

TEST_P(RanksTest, UnetsEqualOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    for (const std::string kind : {"all", "LoRA", "LoHa"}) {
      RunConfig config = tiny_unet();
      if (kind == "LoRA") {
        config.finetune.lora.targets = {"*.to_q", "*.to_k", "*.to_v", "*.to_out.0"};
      } else if (kind == "LoHa") {
        config.finetune.lora.targets = {"*_blocks.*", "conv_out"};
        config.finetune.lora.kind = nn::UpdateKind::kLoha;
        config.finetune.lora.conv_rank = 2;
      }
      const Outcome want = outcome_of_one(config, world);
      for (const auto& [stage, recompute] :
           {std::pair{0, "none"}, {1, "none"}, {2, "block:4"}, {3, "block:4"}}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + kind);
        config.parallel.zero_stage = stage;
        config.train.recompute = recompute;
        config.train.micro_batch = 2;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
    RunConfig config = tiny_unet();
    config.path = inference::Path::kFast;
    config.parallel.zero_stage = 2;
    expect_close(outcome_of(config, world), outcome_of_one(config, world), kRounding);
    config = tiny_unet();
    config.optim.max_grad_norm = 0.0;  // the norm is summed in another order
    const Outcome whole = outcome_of(config, world);
    config.parallel.zero_stage = 3;
    const Outcome divided = outcome_of(config, world);
    EXPECT_EQ(divided.losses, whole.losses);
    EXPECT_TRUE(at::equal(divided.weights, whole.weights));
  });
}

TEST(RanksActivationsTest, ThoseAtTheHostGiveTheSameBits) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const int stage : {0, 3}) {
      for (const std::string level : {"", "mlp", "block"}) {
        RunConfig config = tiny();
        config.path = inference::Path::kFast;
        config.train.micro_batch = 2;  // two passes
        config.parallel.zero_stage = stage;
        config.train.recompute = level.empty() ? "none" : level;
        const Outcome want = outcome_of(config, world);
        const std::string behind = level.empty() ? "" : "," + level;
        std::vector<std::string> others = {"offload" + behind, "offload:2" + behind};
        if (level == "mlp") {
          others.insert(others.end(), {"offload:2,block:3,mlp", "offload,block:1,mlp"});
        }
        for (const std::string& other : others) {
          config.train.recompute = other;
          SCOPED_TRACE("stage " + std::to_string(stage) + ", " + config.train.recompute);
          const Outcome got = outcome_of(config, world);
          EXPECT_EQ(got.losses, want.losses);
          EXPECT_TRUE(at::equal(got.weights, want.weights));
          EXPECT_TRUE(at::equal(got.averages, want.averages));
        }
      }
    }
  });
}

TEST(UnetTrainingTest, CannotHaveActivationsAtTheHost) {
  RunConfig config = tiny_unet();
  config.path = inference::Path::kFast;
  config.train.recompute = "offload";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { TinyRun run(config, comm::Group()); }),
              testing::HasSubstr("cannot keep activations in the host's memory. Hint: "
                                 "train.recompute=block"));
  config.train.recompute = "none";
  config.train.fp8_activations = true;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { TinyRun run(config, comm::Group()); }),
              testing::HasSubstr("cannot keep activations in 8 bits"));
}

// Its gradients add up over a step and start anew in the next, as those of the plain path.
TEST(UnetTrainingTest, TheFastPathTrainsAsThePlainOne) {
  RunConfig config = tiny_unet();
  const Outcome want = outcome_of(config, {});
  config.path = inference::Path::kFast;
  config.train.micro_batch = 2;
  expect_close(outcome_of(config, {}), want, kRounding);
}

INSTANTIATE_TEST_SUITE_P(Worlds, RanksTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

TEST(HybridRanksTest, DividedTwiceOverEqualsOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny();
    const Outcome want = outcome_of_one(config, world);
    config.parallel.replicate = 2;
    for (const int stage : {0, 1, 2, 3}) {
      for (const int64_t micro_batch : {0, 1}) {
        SCOPED_TRACE("stage " + std::to_string(stage));
        config.parallel.zero_stage = stage;
        config.train.micro_batch = micro_batch;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
  });
}

TEST(SequenceRanksTest, DividedTokensEqualOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    for (const std::string architecture : {"dit", "stdit3"}) {
      RunConfig config = architecture == "dit" ? tiny() : tiny_video(architecture);
      const Outcome want = outcome_of_one(config, world);
      config.parallel.sp_size = 2;
      for (const Scheme scheme :
           {Scheme::kUlysses, Scheme::kFastSeq, Scheme::kDsp, Scheme::kRing}) {
        SCOPED_TRACE(config.model.name + ", " + std::string(parallel::to_string(scheme)));
        config.parallel.sequence_scheme = scheme;
        config.parallel.zero_stage = scheme == Scheme::kDsp ? 3 : 2;
        config.train.micro_batch = 2;
        expect_close(outcome_of(config, world), want, kRounding);
      }
      config.train.micro_batch = 0;
    }
  });
}

TEST(SequenceRanksTest, TextAndImageByFastSeqEqualOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    for (const std::string architecture : {"sd3", "flux", "hunyuan_video", "cogvideox"}) {
      for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
        for (const bool freezes : {false, true}) {
          SCOPED_TRACE(architecture + ", path " + std::to_string(static_cast<int>(path)) +
                       (freezes ? ", some frozen" : ""));
          RunConfig config = tiny_of(architecture);
          config.path = path;
          if (freezes) {
            config.finetune.freeze = {"x_embedder.*", "*qkv.weight"};
            if (config.model.transformer.parallel_depth > 0) {
              config.finetune.freeze.push_back("*linear1.*");
            }
          }
          const Outcome want = outcome_of_one(config, world);
          config.parallel.sp_size = 2;
          config.parallel.sequence_scheme = parallel::SequenceScheme::kFastSeq;
          config.parallel.zero_stage = freezes ? 0 : 3;
          config.train.micro_batch = 2;
          expect_close(outcome_of(config, world), want, kRounding);
        }
      }
    }
  });
}

TEST(SequenceRanksTest, FrozenWeightsEqualOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    for (const std::string architecture : {"dit", "stdit3"}) {
      RunConfig config = architecture == "dit" ? tiny() : tiny_video(architecture);
      config.finetune.freeze = {"x_embedder.*", "*attn.qkv.weight", "*.mlp.fc1.*"};
      const Outcome want = outcome_of_one(config, world);
      config.parallel.sp_size = 2;
      for (const Scheme scheme : {Scheme::kUlysses, Scheme::kFastSeq}) {
        SCOPED_TRACE(config.model.name + ", " + std::string(parallel::to_string(scheme)));
        config.parallel.sequence_scheme = scheme;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
  });
}

TEST(SequenceRanksTest, LowRankUpdatesEqualOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    struct Kind {
      inference::Path path;
      nn::UpdateKind update;
      bool dora;
    };
    for (const std::string architecture : {"dit", "stdit3"}) {
      for (const Kind& kind : {Kind{inference::Path::kFast, nn::UpdateKind::kLora, false},
                               Kind{inference::Path::kPlain, nn::UpdateKind::kLora, true},
                               Kind{inference::Path::kPlain, nn::UpdateKind::kLokr, false}}) {
        RunConfig config = architecture == "dit" ? tiny() : tiny_video(architecture);
        config.path = kind.path;
        config.finetune.lora.targets = {"*blocks.*"};
        config.finetune.lora.kind = kind.update;
        config.finetune.lora.dora = kind.dora;
        config.finetune.lora.rank = 3;
        const Outcome want = outcome_of_one(config, world);
        config.parallel.sp_size = 2;
        for (const Scheme scheme : {Scheme::kAuto, Scheme::kUlysses, Scheme::kDsp, Scheme::kRing}) {
          SCOPED_TRACE(config.model.name + ", " + std::string(parallel::to_string(scheme)) +
                       (kind.dora ? ", DoRA" : ""));
          config.parallel.sequence_scheme = scheme;
          config.parallel.zero_stage = scheme == Scheme::kRing ? 3 : 0;
          expect_close(outcome_of(config, world), want, kRounding);
        }
        config.parallel.sequence_scheme = Scheme::kFastSeq;
        EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { TinyRun run(config, world); }),
                    testing::HasSubstr("not for linears with low-rank updates"));
      }
    }
  });
}

TEST(SequenceRanksTest, AllRanksInOneSequenceEqualOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    RunConfig config = tiny_video("stdit2");
    const Outcome want = outcome_of_one(config, world);
    config.parallel.sp_size = 4;
    for (const Scheme scheme : {Scheme::kAuto, Scheme::kUsp, Scheme::kRing}) {
      for (const int stage : {0, 1}) {
        SCOPED_TRACE(std::string(parallel::to_string(scheme)) + ", stage " + std::to_string(stage));
        config.parallel.sequence_scheme = scheme;
        config.parallel.zero_stage = stage;
        expect_close(outcome_of(config, world), want, kRounding);
      }
    }
  });
}

// Phi elements, padding included, of which `ring` lie in buckets of blocks and modulation.
TEST(RanksTrafficTest, IsThatOfTheClosedForms) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    using comm::Operation;
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      RunConfig config = tiny();
      config.path = inference::Path::kFast;
      config.parallel.zero_stage = stage;
      config.train.micro_batch = 2;  // two passes
      TinyRun run(config, world);
      int64_t phi = 0;
      int64_t ring = 0;
      int64_t buckets = 0;
      std::map<std::string, int64_t> last;  // of each ring, its last kRingBuffers buckets
      for (const optim::Bucket& bucket : run.trainable.arena().buckets()) {
        phi += bucket.numel;
        ring += bucket.ring.empty() ? 0 : bucket.numel;
        ++buckets;
      }
      Outcome outcome;
      run.step(&outcome);
      run.step(&outcome);  // the order of use is known
      const comm::Group& group = run.trainable.boosted().parallel()->shard_group();
      group.reset_traffic();
      run.step(&outcome);
      const int64_t scalars = int64_t{4} * (stage > 0 ? 2 : 1);  // the loss, and the norm of slices
      EXPECT_EQ(group.traffic(Operation::kAllReduce).bytes, scalars + (stage == 0 ? 4 * phi : 0));
      // Stages 2 and 3 reduce the blocks' gradients after both passes.
      const int64_t reduced = stage == 0 ? 0 : stage == 1 ? 4 * phi : 4 * (phi + ring);
      EXPECT_EQ(group.traffic(Operation::kReduceScatter).bytes, reduced);
      const int64_t gathered = group.traffic(Operation::kAllGather).bytes;
      if (stage <= 2) {
        EXPECT_EQ(gathered, stage == 0 ? 0 : 4 * phi);
      } else {
        // Each pass gathers forward and backward, but for what still lies in the rings' buffers:
        // both slabs, and the last two of six blocks.
        const auto& all = run.trainable.arena().buckets();
        const int64_t slabs = all[1].numel + all[2].numel;
        const int64_t block = all[3].numel;
        EXPECT_EQ(gathered, 4 * (phi - ring) + 8 * (slabs + 10 * block));
      }
      EXPECT_EQ(group.traffic(Operation::kBroadcast).calls, 0);
    }
  });
}

TEST(RanksBucketsTest, LargerOnesGiveTheSameBitsWithFewerCalls) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    using comm::Operation;
    for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE("path " + std::to_string(static_cast<int>(path)) + ", stage " +
                     std::to_string(stage));
        RunConfig config = tiny();
        config.path = path;
        config.train.micro_batch = 2;  // two passes
        config.train.recompute = "block:3";
        config.optim.max_grad_norm = 0.0;  // the norm is summed in another order
        config.parallel.zero_stage = stage;
        const Outcome want = outcome_of(config, world);
        config.parallel.bucket_mib = 1;  // more than the model has: the fewest that may be
        const Outcome got = outcome_of(config, world);
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_TRUE(at::equal(got.weights, want.weights));
        EXPECT_TRUE(at::equal(got.averages, want.averages));

        TinyRun run(config, world);
        // Two slabs stay two, six blocks become four buckets; and two islands.
        EXPECT_EQ(run.trainable.arena().buckets().size(), 8U);
        Outcome outcome;
        run.step(&outcome);
        const comm::Group& group = run.trainable.boosted().parallel()->shard_group();
        group.reset_traffic();
        run.step(&outcome);
        constexpr int64_t kScalars = 2;  // the loss, and the norm of slices
        EXPECT_EQ(group.traffic(Operation::kAllReduce).calls, stage == 0 ? 8 + 1 : kScalars);
        EXPECT_EQ(group.traffic(Operation::kReduceScatter).calls, stage == 0   ? 0
                                                                  : stage == 1 ? 8
                                                                               : 8 + 6);
        if (stage < 3) {
          EXPECT_EQ(group.traffic(Operation::kAllGather).calls, stage == 0 ? 0 : 8);
        }
      }
    }
  });
}

TEST(RanksTimesTest, WaitingIsCounted) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const PluginConfig& parallel :
         {PluginConfig{.zero_stage = 2}, PluginConfig{.pp_size = 2}}) {
      SCOPED_TRACE(parallel.pp_size);
      RunConfig config = tiny();
      config.parallel = parallel;
      TinyRun run(config, world);
      const Boosted& boosted = run.trainable.boosted();
      Outcome outcome;
      run.step(&outcome);
      const int64_t before = boosted.waited().item<int64_t>();
      world.barrier();
      constexpr std::chrono::milliseconds kLate(300);
      if (world.rank() == 1) {
        std::this_thread::sleep_for(kLate);
      }
      run.step(&outcome);
      const std::chrono::nanoseconds waited(boosted.waited().item<int64_t>() - before);
      if (world.rank() == 0) {
        EXPECT_GE(waited, kLate / 10);
      } else {
        EXPECT_GT(waited.count(), 0);
      }
    }
  });
}

// Bytes of parameters, gradients, moments and averages of a rank (with two averages), all fp32 but
// the blocks' weights.
TEST(RanksMemoryTest, IsThatOfTheClosedForms) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      RunConfig config = tiny();
      config.precision = Precision::kBf16;
      config.parallel.zero_stage = stage;
      TinyRun run(config, world);
      const optim::Arena& arena = run.trainable.arena();
      int64_t phi = 0;
      int64_t ring = 0;
      int64_t buffers = 0;
      std::map<std::string, int64_t> largest;
      for (const optim::Bucket& bucket : arena.buckets()) {
        phi += bucket.numel;
        if (!bucket.ring.empty()) {
          ring += bucket.numel;
          largest[bucket.ring] = std::max(largest[bucket.ring], bucket.numel);
        }
      }
      for (const auto& [name, numel] : largest) {
        buffers += static_cast<int64_t>(optim::kRingBuffers) * numel;
      }
      const int64_t islands = phi - ring;
      const int64_t ranks = stage == 0 ? 1 : 4;
      EXPECT_EQ(arena.bytes(optim::Role::exp_avg()), 4 * phi / ranks);
      EXPECT_EQ(arena.bytes(optim::Role::exp_avg_sq()), 4 * phi / ranks);
      EXPECT_EQ(arena.bytes(optim::Role::average(0)), 4 * phi / ranks);
      EXPECT_EQ(arena.bytes(optim::Role::average(1)), 4 * phi / ranks);
      // Islands are read as they are: their whole values hold the master.
      EXPECT_EQ(arena.bytes(optim::Role::master()), 4 * islands + 4 * ring / ranks);
      EXPECT_EQ(arena.bytes(optim::Role::compute()),
                stage == 3 ? 2 * ring / 4 + 2 * buffers : 2 * ring);
      EXPECT_EQ(arena.bytes(optim::Role::grad()),
                stage >= 2 ? 4 * islands + 4 * ring / 4 + 4 * buffers : 4 * phi);
    }
  });
}

// Nothing of the initial values depends on who makes them.
TEST(RanksConstructionTest, GivesTheBitsOfOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny();
    TinyRun alone(config, {});
    const at::Tensor want = alone.all(optim::Role::master());
    for (const int stage : {1, 2, 3}) {
      config.parallel.zero_stage = stage;
      TinyRun run(config, world);
      EXPECT_TRUE(at::equal(run.all(optim::Role::master()), want)) << "stage " << stage;
      EXPECT_TRUE(at::equal(run.all(optim::Role::average(0)), want)) << "stage " << stage;
    }
  });
}

// Forward reads the average while it is bound, and the same weights as before afterwards.
TEST(RanksConstructionTest, BoundAveragesAreReadAndLeft) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      for (const int stage : {0, 1, 3}) {
        SCOPED_TRACE("stage " + std::to_string(stage));
        RunConfig config = tiny();
        config.precision = precision;
        config.parallel.zero_stage = stage;
        TinyRun run(config, world);
        Outcome outcome;
        run.step(&outcome);
        const at::Tensor raw = run.all(optim::Role::master());
        run.trainable.boosted().refresh();
        const at::Tensor x = at::arange(4 * 8 * 8, at::kFloat).view({1, 4, 8, 8}) / 256.0;
        const auto predict = [&] {
          const at::NoGradGuard no_grad;
          return run.trainable.model().forward(x, at::full({1}, 0.5F),
                                               {.labels = at::full({1}, 3, at::kLong)});
        };
        const at::Tensor before = predict();
        {
          const optim::BoundWeights bound =
              run.trainable.arena().bind(optim::WeightSet::average(0));
          EXPECT_FALSE(at::equal(predict(), before));
        }
        EXPECT_TRUE(at::equal(predict(), before));
        EXPECT_TRUE(at::equal(run.all(optim::Role::master()), raw));
      }
    }
  });
}

}  // namespace ranks_test
}  // namespace kinora::train
