// Training with the linears of every block divided among ranks, against one rank with the same
// global batch, and its checkpoints in other layouts.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "kinora/checkpoint/agreement.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/models/model.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/train/tiny_families.h"

namespace kinora::train {
namespace tensor_ranks_test {

constexpr double kRounding = 2e-5;  // of sums in another order
constexpr comm::RankOptions kLong = {.time_limit = std::chrono::seconds(300)};

constexpr std::array kPaths = {inference::Path::kPlain, inference::Path::kFast};

class FamiliesTest : public testing::TestWithParam<const char*> {};

TEST_P(FamiliesTest, DividedLinearsEqualOneRank) {
  comm::run_on_ranks(
      2,
      [](const comm::Group& world) {
        for (const inference::Path path : kPaths) {
          RunConfig config = tiny_of(GetParam());
          config.path = path;
          const Outcome want = outcome_of_one(config, world);
          config.parallel.tp_size = 2;
          for (const std::string recompute : {"none", "block:2"}) {
            SCOPED_TRACE(std::string(path == inference::Path::kFast ? "fast" : "plain") +
                         ", recompute " + recompute);
            config.train.recompute = recompute;
            config.train.micro_batch = recompute == "none" ? 0 : 4;
            expect_close(outcome_of(config, world), want, kRounding);
          }
        }
      },
      kLong);
}

TEST_P(FamiliesTest, LowRankUpdatesEqualOneRank) {
  comm::run_on_ranks(
      2,
      [](const comm::Group& world) {
        for (const inference::Path path : kPaths) {
          RunConfig config = tiny_of(GetParam());
          config.path = path;
          config.finetune.lora.targets = {"*blocks.*"};
          config.finetune.lora.rank = 3;
          const Outcome want = outcome_of_one(config, world);
          config.parallel.tp_size = 2;
          SCOPED_TRACE(path == inference::Path::kFast ? "fast" : "plain");
          expect_close(outcome_of(config, world), want, kRounding);
        }
      },
      kLong);
}

TEST_P(FamiliesTest, DividedNormsEqualOneRank) {
  comm::run_on_ranks(
      2,
      [](const comm::Group& world) {
        RunConfig config = tiny_of(GetParam());
        config.path = inference::Path::kFast;
        for (const bool is_tuned : {false, true}) {
          if (is_tuned) {
            config.finetune.lora.targets = {"*blocks.*"};
            config.finetune.lora.rank = 3;
          }
          config.parallel = {};
          config.train.recompute = "none";
          config.train.micro_batch = 0;
          const Outcome want = outcome_of_one(config, world);
          config.parallel.tp_size = 2;
          config.parallel.divided_norms = true;
          for (const std::string recompute : {"none", "elementwise", "mlp", "block:1"}) {
            SCOPED_TRACE(std::string(is_tuned ? "LoRA" : "all weights") + ", recompute " +
                         recompute);
            config.train.recompute = recompute;
            config.train.micro_batch = recompute == "none" ? 0 : 4;
            expect_close(outcome_of(config, world), want, kRounding);
          }
        }
      },
      kLong);
}

/// Sums over tokens of pictures would cost more than the few weights that make and read these.
TEST_P(FamiliesTest, OnlyLinearsOfPatchesStayWhole) {
  RunConfig config = tiny_of(GetParam());
  const std::unique_ptr<models::Model> model = models::make_model(config.model);
  for (const auto& [path, layer] : model->named_weight_layers()) {
    EXPECT_TRUE(layer->cut().has_value() || path == "final_layer.linear" ||
                path.find("x_embedder") != std::string::npos)
        << path;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesTest,
                         testing::Values("dit", "pixart", "stdit", "stdit2", "stdit3", "latte",
                                         "vdit", "sd3", "flux", "hunyuan_video",
                                         "hunyuan_video_first_frame", "cogvideox", "wan",
                                         "ltx_video"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TensorRanksTest, WithEveryStageEqualsOneRank) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
          RunConfig config = tiny_of("stdit3");
          config.path = path;
          const Outcome want = outcome_of_one(config, world);
          ASSERT_GT(want.norms[0], config.optim.max_grad_norm) << "clipping is not seen";
          config.parallel.tp_size = 2;
          for (const int64_t stage : {0, 1, 2, 3}) {
            // The stages that add up passes on one path have one pass on the other.
            const bool adds_up = (stage % 2 == 0) == (path == inference::Path::kFast);
            config.parallel.zero_stage = stage;
            config.train.micro_batch = adds_up ? 2 : 0;
            SCOPED_TRACE("path " + std::to_string(static_cast<int>(path)) + ", stage " +
                         std::to_string(stage) + ", micro-batch " +
                         std::to_string(config.train.micro_batch));
            expect_close(outcome_of(config, world), want, kRounding);
          }
          config.parallel = {.replicate = 2, .tp_size = 2};
          expect_close(outcome_of(config, world), want, kRounding);
          config.parallel = {.tp_size = 4};
          expect_close(outcome_of(config, world), want, kRounding);
        }
      },
      kLong);
}

TEST(TensorRanksTest, WithDividedTokensEqualsOneRank) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        using Scheme = parallel::SequenceScheme;
        for (const std::string architecture : {"stdit3", "flux"}) {
          for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
            RunConfig config = tiny_of(architecture);
            config.path = path;
            const Outcome want = outcome_of_one(config, world);
            config.parallel.tp_size = 2;
            config.parallel.sp_size = 2;
            for (const Scheme scheme : {Scheme::kUlysses, Scheme::kRing, Scheme::kDsp}) {
              if (architecture == "flux" && scheme != Scheme::kUlysses) {
                continue;
              }
              SCOPED_TRACE(architecture + ", " + std::string(parallel::to_string(scheme)));
              config.parallel.sequence_scheme = scheme;
              config.parallel.zero_stage = scheme == Scheme::kDsp ? 2 : 0;
              expect_close(outcome_of(config, world), want, kRounding);
            }
          }
        }
      },
      kLong);
}

TEST(TensorRanksTest, RulesByElementsEqualOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const auto rule : {kernels::UpdateRule::kSgd, kernels::UpdateRule::kScheduleFree}) {
      RunConfig config = tiny();
      config.optim.rule = rule;
      const Outcome want = outcome_of_one(config, world);
      config.parallel.tp_size = 2;
      SCOPED_TRACE(optim::to_string(rule));
      expect_close(outcome_of(config, world), want, kRounding);
    }
  });
}

TEST(TensorRanksTest, StartAsOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny_of("flux");
    TinyRun alone(config, {});
    config.parallel.tp_size = 2;
    config.parallel.zero_stage = 1;
    TinyRun run(config, world);
    EXPECT_TRUE(at::equal(run.all(optim::Role::master()), alone.all(optim::Role::master())));
    EXPECT_LT(run.trainable.arena().bytes(optim::Role::grad()),
              alone.trainable.arena().bytes(optim::Role::grad()));
    EXPECT_EQ(run.trainable.arena().num_elements(), alone.trainable.arena().num_elements());
  });
}

/// A layout of the ranks of a run.
struct Layout {
  int64_t tensor;
  int64_t sequence;
  int64_t stage;
};

RunConfig in_layout(RunConfig config, const Layout& layout) {
  config.parallel.tp_size = layout.tensor;
  config.parallel.sp_size = layout.sequence;
  config.parallel.zero_stage = layout.stage;
  config.parallel.sequence_scheme = parallel::SequenceScheme::kUlysses;
  return config;
}

TEST(TensorRanksTest, CheckpointsGoOnInAnyLayout) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        const data::TemporaryFolder own_folder;
        const std::filesystem::path folder =
            checkpoint::gather_texts(world, own_folder.path().string()).front();
        for (const bool is_tuned : {false, true}) {
          RunConfig config = tiny_of("stdit3");
          if (is_tuned) {
            config.finetune.lora.targets = {"*blocks.*"};
          }
          for (const Layout& from : {Layout{2, 1, 2}, Layout{4, 1, 0}, Layout{1, 2, 1}}) {
            const auto own = folder / (std::to_string(from.tensor) + (is_tuned ? "t" : "f"));
            Outcome ignored;
            if (is_tuned && from.tensor != 2) {
              continue;  // the others are as those of whole models, and LoRA has no sequence
            }
            TinyRun run(in_layout(config, from), world);
            run.step(&ignored);
            run.step(&ignored);
            const auto path = run.save(own, world);
            const auto all = [](TinyRun& of, optim::Role role) {
              std::vector<at::Tensor> values;
              for (const auto& [name, parameter] : of.trainable.model().named_parameters()) {
                if (!parameter->frozen) {
                  values.push_back(of.trainable.arena().export_parameter(name, role).flatten());
                }
              }
              return at::cat(values);
            };
            std::vector<at::Tensor> want;
            for (const optim::Role role : run.trainable.arena().state_roles()) {
              want.push_back(all(run, role));
            }
            const at::Tensor computed = run.all(optim::Role::compute());
            for (const Layout& to : {Layout{1, 1, 3}, Layout{2, 2, 0}, Layout{4, 1, 0}}) {
              SCOPED_TRACE("from " + std::to_string(from.tensor) + " to " +
                           std::to_string(to.tensor) + (is_tuned ? ", tuned" : ""));
              if (is_tuned && to.sequence > 1) {
                continue;
              }
              TinyRun next(in_layout(config, to), world);
              (void)checkpoint::load(path, next.trainable.arena(), world);
              size_t next_role = 0;
              for (const optim::Role role : run.trainable.arena().state_roles()) {
                EXPECT_TRUE(at::equal(all(next, role), want.at(next_role++)))
                    << optim::to_string(role);
              }
              EXPECT_TRUE(at::equal(next.all(optim::Role::compute()), computed));
            }
            // Whole, as one rank reads it without a layout.
            TinyRun alone(config, {});
            const checkpoint::LateTensors whole = checkpoint::checkpoint_weights(
                path, alone.trainable.model(), optim::Role::master());
            for (const auto& [name, parameter] : alone.trainable.model().named_parameters()) {
              const at::Tensor want =
                  run.trainable.arena().export_parameter(name, optim::Role::master());
              EXPECT_TRUE(at::equal(whole.at(name).read_all().to(at::kFloat), want)) << name;
            }
          }
        }
        world.barrier();  // rank 0's folder is removed now
      },
      kLong);
}

// Of rows that are read apart, and of columns that are read in several pieces.
TEST(TensorRanksTest, LargeParametersGoOnInOtherBoxes) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        const data::TemporaryFolder own_folder;
        const std::filesystem::path folder =
            checkpoint::gather_texts(world, own_folder.path().string()).front();
        RunConfig config = tiny();
        config.model.transformer = {.depth = 1, .hidden = 1024, .heads = 8, .patch = 2};
        config.model = models::resolved(config.model);
        config.ema_decays = {};
        for (const Layout& from : {Layout{4, 1, 0}, Layout{2, 1, 1}}) {
          TinyRun run(in_layout(config, from), world);
          const auto own = folder / std::to_string(from.tensor);
          const std::filesystem::path path = run.save(own, world);
          const at::Tensor want = run.all(optim::Role::master());
          for (const Layout& to : {Layout{1, 1, 2}, Layout{2, 1, 1}, Layout{4, 1, 0}}) {
            SCOPED_TRACE("from " + std::to_string(from.tensor) + " to " +
                         std::to_string(to.tensor));
            TinyRun next(in_layout(config, to), world);
            for (const optim::Bucket& bucket : next.trainable.arena().buckets()) {
              at::Tensor(bucket.master).zero_();
            }
            next.resume(path, world);
            EXPECT_TRUE(at::equal(next.all(optim::Role::master()), want));
          }
        }
        world.barrier();  // rank 0's folder is removed now
      },
      kLong);
}

TEST(TensorRanksTest, NumbersThatDoNotDivideAreNamed) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny();
    config.parallel.tp_size = 4;
    const auto message = [&] {
      return error_of(ErrorKind::kConfig, [&] { TinyRun run(config, world); });
    };
    EXPECT_THAT(message(), testing::HasSubstr("parallel.tensor is 4, which does not divide the "
                                              "heads and the MLP's width of this model. Hint: 1 "
                                              "or 2 do"));
    config.parallel.tp_size = 2;
    config.optim.rule = kernels::UpdateRule::kMuon;
    EXPECT_THAT(message(), testing::HasSubstr("muon needs whole parameters"));
    config.optim.rule = kernels::UpdateRule::kAdamW;
    config.finetune.lora.targets = {"blocks.*"};
    config.finetune.lora.dora = true;
    EXPECT_THAT(message(), testing::HasSubstr("the linears of LoRA alone"));
    config = tiny_unet();
    config.parallel.tp_size = 2;
    EXPECT_THAT(message(), testing::HasSubstr("no linear of this model can be divided"));
    config = tiny();
    config.parallel.tp_size = 2;
    config.parallel.divided_norms = true;
    EXPECT_THAT(message(), testing::HasSubstr("parallel.divided_norms needs the fast path"));
  });
}

TEST(TensorRanksTest, HalvesOfManyRowsEqualOneRank) {
  comm::run_on_ranks(
      2,
      [](const comm::Group& world) {
        for (const char* family : {"dit", "flux"}) {
          SCOPED_TRACE(family);
          RunConfig config = tiny_of(family);
          config.path = inference::Path::kFast;
          config.model.height = 32;
          config.model.width = 32;
          // Sums of a step.
          const auto sums = [&](int64_t batch) {
            config.train.global_batch = batch;
            config.parallel.tp_size = 2;
            TinyRun run(config, world);
            const comm::Group& ranks = run.trainable.arena().options().tensor;
            ranks.reset_traffic();
            Outcome outcome;
            run.step(&outcome);
            return ranks.traffic(comm::Operation::kAllReduce).calls;
          };
          // Of eight pictures of 256 tokens those of each branch forward come in two, of a joint
          // block those of pictures alone.
          const int64_t split = family == std::string("dit") ? 2 * 6 : 2 * 2 + 2;
          EXPECT_EQ(sums(8), sums(2) + split);
          config.parallel = {};
          config.train.global_batch = 8;
          const Outcome want = outcome_of_one(config, world);
          config.parallel.tp_size = 2;
          expect_close(outcome_of(config, world), want, kRounding);
        }
      },
      kLong);
}

TEST(TensorRanksTest, DividedNormsScatterWhatBranchesMake) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny();
    config.path = inference::Path::kFast;
    config.parallel.tp_size = 2;
    for (const bool divided : {false, true}) {
      config.parallel.divided_norms = divided;
      TinyRun run(config, world);
      const comm::Group& ranks = run.trainable.arena().options().tensor;
      ranks.reset_traffic();
      Outcome outcome;
      run.step(&outcome);
      // Of two branches of each of six blocks, forward and backward.
      EXPECT_EQ(ranks.traffic(comm::Operation::kReduceScatter).calls, divided ? 24 : 0);
    }
  });
}

TEST(TensorRanksTest, TokensThatDoNotComeOutEvenAreNamed) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny();  // pictures of 16 tokens
    config.path = inference::Path::kFast;
    config.train.micro_batch = 1;
    config.parallel.tp_size = 2;
    config.parallel.divided_norms = true;
    Outcome outcome;
    TinyRun even(config, world);
    even.step(&outcome);  // the tokens of one picture divide
    config.model.height = 6;
    config.model.width = 6;
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           TinyRun odd(config, world);
                           odd.step(&outcome);
                         }),
                testing::HasSubstr("divides the 9 tokens of a micro-batch among 2 ranks, which "
                                   "does not come out even. Hint: train.micro_batch a multiple "
                                   "of 2, or parallel.divided_norms=false"));
  });
}

}  // namespace tensor_ranks_test
}  // namespace kinora::train
