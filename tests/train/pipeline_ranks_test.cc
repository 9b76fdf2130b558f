// Training with the blocks divided among ranks, against one rank with the same global batch, and
// its checkpoints in other layouts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kinora/checkpoint/agreement.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/train/tiny_families.h"

namespace kinora::train {
namespace pipeline_ranks_test {

constexpr double kRounding = 2e-5;  // of sums in another order
constexpr comm::RankOptions kLong = {.time_limit = std::chrono::seconds(300)};

constexpr std::array kPaths = {inference::Path::kPlain, inference::Path::kFast};

class StagesTest : public testing::TestWithParam<const char*> {};

TEST_P(StagesTest, EqualOneRank) {
  comm::run_on_ranks(
      2,
      [](const comm::Group& world) {
        for (const inference::Path path : kPaths) {
          for (const bool is_tuned : {false, true}) {
            RunConfig config = tiny_of(GetParam());
            config.path = path;
            config.train.micro_batch = 2;
            if (is_tuned) {
              config.finetune.lora.targets = {"*blocks.*"};
              config.finetune.lora.rank = 3;
              config.train.recompute = "block:1";
            } else if (path == inference::Path::kFast) {
              config.train.recompute = "offload";
            }
            const Outcome want = outcome_of_one(config, world);
            config.parallel.pp_size = 2;
            SCOPED_TRACE(std::string(path == inference::Path::kFast ? "fast" : "plain") +
                         (is_tuned ? ", LoRA" : ""));
            expect_close(outcome_of(config, world), want, kRounding);
          }
        }
      },
      kLong);
}

INSTANTIATE_TEST_SUITE_P(All, StagesTest,
                         testing::Values("dit", "pixart", "stdit", "stdit2", "stdit3", "latte",
                                         "vdit", "sd3", "flux", "hunyuan_video",
                                         "hunyuan_video_first_frame", "cogvideox", "wan",
                                         "ltx_video"),
                         [](const auto& info) { return std::string(info.param); });

/// How four ranks divide the work.
struct Layout {
  std::string name;
  std::string architecture;
  PluginConfig parallel;
  bool is_fast_alone = false;  // others show the plain path with what it is made of
};

std::vector<Layout> layouts() {
  using Scheme = parallel::SequenceScheme;
  const auto late = parallel::PipelineSchedule::kZeroBubble;
  return {
      {"four stages", "dit", {.pp_size = 4}},
      {"four stages, late weights", "dit", {.pp_size = 4, .pp_schedule = late}},
      {"three stages a rank", "dit", {.pp_size = 2, .pp_chunks = 3}},
      {"two stages a rank, ZeRO-1", "flux", {.zero_stage = 1, .pp_size = 2, .pp_chunks = 2}, true},
      {"two stages a rank of two and two", "stdit3", {.pp_size = 2, .pp_chunks = 2}, true},
      {"data", "stdit3", {.zero_stage = 0, .pp_size = 2}},
      {"ZeRO-1", "dit", {.zero_stage = 1, .pp_size = 2}, true},
      {"ZeRO-1, late weights", "flux", {.zero_stage = 1, .pp_size = 2, .pp_schedule = late}},
      {"ZeRO-2 once a step",
       "pixart",
       {.zero_stage = 2, .pp_size = 2, .reduce_each_micro_batch = false}},
      {"replicas", "latte", {.replicate = 2, .pp_size = 2}},
      {"tensor", "flux", {.tp_size = 2, .pp_size = 2}},
      {"tensor, late weights", "stdit3", {.tp_size = 2, .pp_size = 2, .pp_schedule = late}},
      {"sequence", "stdit3", {.sp_size = 2, .pp_size = 2, .sequence_scheme = Scheme::kUlysses}},
      {"sequence of two streams",
       "flux",
       {.sp_size = 2, .pp_size = 2, .sequence_scheme = Scheme::kUlysses},
       true},
  };
}

TEST(PipelineRanksTest, WithAllElseEqualsOneRank) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        std::map<std::pair<std::string, inference::Path>, Outcome> of_one;
        for (const Layout& layout : layouts()) {
          for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
            const bool is_refused_plain =
                layout.parallel.pp_schedule == parallel::PipelineSchedule::kZeroBubble;
            if (path == inference::Path::kPlain && (is_refused_plain || layout.is_fast_alone)) {
              continue;
            }
            RunConfig config = tiny_of(layout.architecture);
            config.path = path;
            config.train.micro_batch = 1;
            Outcome& want = of_one[{layout.architecture, path}];
            if (want.losses.empty()) {
              want = outcome_of_one(config, world);
            }
            ASSERT_GT(want.norms[0], config.optim.max_grad_norm) << "clipping is not seen";
            config.parallel = layout.parallel;
            SCOPED_TRACE(layout.name + (path == inference::Path::kFast ? ", fast" : ", plain"));
            expect_close(outcome_of(config, world), want, kRounding);
          }
        }
      },
      kLong);
}

TEST(PipelineRanksTest, EveryRuleEqualsOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    using Rule = kernels::UpdateRule;
    for (const Rule rule : {Rule::kSgd, Rule::kMuon, Rule::kAdafactor, Rule::kCame, Rule::kLamb}) {
      RunConfig config = tiny();
      set_rule(config, rule);
      config.train.micro_batch = 2;
      const Outcome want = outcome_of_one(config, world);
      config.parallel.pp_size = 2;
      SCOPED_TRACE(optim::to_string(rule));
      Outcome got = outcome_of(config, world);
      if (optim::keeps_factors(rule)) {  // makes updates of gradients that are but rounding
        got.weights = want.weights;
        got.averages = want.averages;
      }
      expect_close(got, want, kRounding);
    }
  });
}

TEST(PipelineRanksTest, EachRankHasItsBlocksAlone) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny_of("flux");
    TinyRun alone(config, {});
    config.parallel.pp_size = 2;
    TinyRun run(config, world);
    const optim::Arena& arena = run.trainable.arena();
    EXPECT_TRUE(at::equal(run.all(optim::Role::master()), alone.all(optim::Role::master())));
    EXPECT_LT(arena.bytes(optim::Role::grad()), alone.trainable.arena().bytes(optim::Role::grad()));
    EXPECT_EQ(arena.num_elements(), alone.trainable.arena().num_elements());
    int64_t blocks = 0;
    for (const auto& [path, parameter] : run.trainable.model().named_parameters()) {
      EXPECT_EQ(parameter->value.defined(), parameter->is_here) << path;
      EXPECT_EQ(parameter->stage.has_value(), path.find("_blocks.") != std::string::npos) << path;
      blocks += parameter->stage && parameter->is_here ? 1 : 0;
    }
    EXPECT_GT(blocks, 0);
  });
}

TEST(PipelineRanksTest, AllRanksSeeThePredictionOfOne) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const at::NoGradGuard no_grad;
    for (const int64_t chunks : {1, 2}) {
      RunConfig config = tiny_of("flux");
      TinyRun alone(config, {});
      config.parallel.pp_size = 2;
      config.parallel.pp_chunks = chunks;
      TinyRun run(config, world);
      const data::Batch batch = batches_of(config, parallel::Mesh(), 0).front();
      const diffusion::Conditions conditions{
          .text = batch.text, .text_lengths = batch.text_lengths, .pooled = batch.pooled};
      const at::Tensor t = at::full({batch.images.size(0)}, 0.3, at::kFloat);
      const at::Tensor got = run.trainable.model().forward(batch.images, t, conditions);
      EXPECT_TRUE(at::equal(got, alone.trainable.model().forward(batch.images, t, conditions)));
    }
  });
}

/// A layout of the ranks of a run.
struct Where {
  int64_t pipeline;
  int64_t tensor;
  int64_t stage;
};

RunConfig in_layout(RunConfig config, const Where& where) {
  config.parallel.pp_size = where.pipeline;
  config.parallel.tp_size = where.tensor;
  config.parallel.zero_stage = where.stage;
  return config;
}

TEST(PipelineRanksTest, CheckpointsGoOnInAnyLayout) {
  comm::run_on_ranks(
      4,
      [](const comm::Group& world) {
        const data::TemporaryFolder own_folder;
        const std::filesystem::path folder =
            checkpoint::gather_texts(world, own_folder.path().string()).front();
        int64_t number = 0;
        for (const bool is_tuned : {false, true}) {
          RunConfig config = tiny_of("dit");
          config.train.micro_batch = 2;
          if (is_tuned) {
            config.finetune.lora.targets = {"*blocks.*"};
          }
          for (const Where& from : {Where{2, 1, 1}, Where{2, 2, 0}, Where{4, 1, 0}}) {
            if (is_tuned && from.pipeline != 4) {
              continue;  // the others are as those of whole models
            }
            const auto own = folder / std::to_string(number++);
            Outcome ignored;
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
            for (const Where& to : {Where{1, 1, 3}, Where{4, 1, 0}, Where{2, 2, 0}}) {
              SCOPED_TRACE("from " + std::to_string(from.pipeline) + " to " +
                           std::to_string(to.pipeline) + (is_tuned ? ", tuned" : ""));
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

TEST(PipelineRanksTest, SaysWhatCannotBe) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    RunConfig config = tiny();
    const auto message = [&] {
      return error_of(ErrorKind::kConfig, [&] { (void)outcome_of(config, world); });
    };
    config.parallel = {.pp_size = 2, .pp_chunks = 4};
    EXPECT_THAT(message(), testing::HasSubstr("are more stages than the model's 6 blocks"));
    config.parallel = {.zero_stage = 3, .pp_size = 2};
    EXPECT_THAT(message(), testing::HasSubstr("parallel.zero_stage 3 reduces gradients after each "
                                              "micro-batch"));
    config.parallel = {.pp_size = 2, .pp_chunks = 2};
    config.train.micro_batch = 4;
    EXPECT_THAT(message(), testing::HasSubstr("a multiple of parallel.pipeline's 2 micro-batches, "
                                              "got 1"));
    config.parallel = {.pp_chunks = 2};
    EXPECT_THAT(message(), testing::HasSubstr("parallel.pipeline is 1"));
    config.parallel = {.pp_size = 2, .pp_schedule = parallel::PipelineSchedule::kZeroBubble};
    EXPECT_THAT(message(), testing::HasSubstr("zero_bubble needs the fast path"));
    config.parallel = {.pp_size = 2};
    config.optim.rule = kernels::UpdateRule::kProdigy;
    EXPECT_THAT(message(), testing::HasSubstr("prodigy measures its distance over all"));
    config = tiny_unet();
    config.parallel.pp_size = 2;
    EXPECT_THAT(message(), testing::HasSubstr("no sequence of blocks"));
  });
}

}  // namespace pipeline_ranks_test
}  // namespace kinora::train
