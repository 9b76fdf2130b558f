// Steps in which each size has its own number of sequence ranks against the same samples on one
// rank.
#include "kinora/train/dynamic_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/parallel/sequence_schedule.h"
#include "kinora/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/mixed_pictures.h"
#include "tests/train/mixed_run.h"
#include "tests/train/run_lines.h"
#include "tests/train/shared_path.h"

namespace kinora::train {
namespace dynamic_sequence_test {

using testing::HasSubstr;

constexpr double kRounding = 1e-5;  // of sums in another order

class DynamicSequenceTest : public testing::TestWithParam<int64_t> {};

TEST_P(DynamicSequenceTest, EveryStageEqualsOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    using Placed = std::vector<parallel::PlacedPass>;
    // The first clip on all that may divide it, the other on half of them, pictures on one.
    const auto mixed = [&world](int64_t most) {
      const int64_t half = most / 2;
      const int64_t last = world.size() - 1;
      return Placed{
          {0, 0, most}, {3, world.size() - half, half}, {2, 0, 1}, {1, 1, 1}, {4, last, 1}};
    };
    // The others have none.
    const auto on_one = [](int64_t /*most*/) {
      return Placed{{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {3, 0, 1}, {4, 0, 1}};
    };
    const auto on_all = [](int64_t most) {
      return Placed{{0, 0, most}, {1, 0, most}, {2, 0, most}, {3, 0, most}, {4, 0, most}};
    };
    struct Case {
      inference::Path path;
      int stage;
      Scheme scheme;
      std::function<Placed(int64_t most)> placed;
      int64_t replicate = 1;
      std::function<void(RunConfig&)> set = [](RunConfig&) {};
    };
    const auto frozen = [](RunConfig& config) {
      config.finetune.freeze = {"x_embedder.*", "*attn.qkv.weight", "*.mlp.fc1.*"};
    };
    const auto recomputed = [](RunConfig& config) { config.train.recompute = "block:2"; };
    for (const Case& c : {Case{inference::Path::kFast, 1, Scheme::kDsp, mixed, 1, frozen},
                          Case{inference::Path::kFast, 2, Scheme::kUlysses, on_one},
                          Case{inference::Path::kPlain, 0, Scheme::kRing, mixed, 1, recomputed},
                          Case{inference::Path::kFast, 0, Scheme::kFastSeq, on_all},
                          Case{inference::Path::kFast, 1, Scheme::kUlysses, mixed, 2}}) {
      if (world.size() / c.replicate == 1) {
        continue;
      }
      SCOPED_TRACE("stage " + std::to_string(c.stage) + ", " +
                   std::string(parallel::to_string(c.scheme)));
      RunConfig config = tiny_video("stdit3");
      config.path = c.path;
      c.set(config);
      // Each rank computes the reference in a group of its own.
      const Outcome want = MixedRun(config, {}).outcome({});
      ASSERT_GT(want.norms[0], config.optim.max_grad_norm) << "clipping is not seen";
      config.dynamic_sequence = true;
      config.parallel.replicate = c.replicate;
      config.parallel.sp_size = world.size() / c.replicate;
      config.parallel.sequence_scheme = c.scheme;
      config.parallel.zero_stage = c.stage;
      config.parallel.reduce_each_micro_batch = false;
      expect_close(MixedRun(config, world).outcome(c.placed(config.parallel.sp_size)), want,
                   kRounding);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DynamicSequenceTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

class DynamicTrainingTest : public MixedPicturesTest {};

TEST_F(DynamicTrainingTest, TwoRanksThatMeasureAndAResumeEqualOneRank) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    const std::filesystem::path folder = shared_path(folder_.path(), world);
    if (world.rank() == 0) {
      Trainer(config(folder, "one", {}), {}).run();
    }
    std::vector<std::string> more = {"parallel.sequence=2", "parallel.zero_stage=1"};
    std::vector<std::string> first = more;
    first.emplace_back("train.steps=3");
    more.emplace_back("train.deterministic=true");  // by what is counted, from there on
    Trainer(config(folder, "two", first), {}, world).run();
    const TrainResult resumed =
        Trainer(config(folder, "two", more), {.mode = Resume::Mode::kAuto, .checkpoint = {}}, world)
            .run();
    EXPECT_TRUE(resumed.complete);
    if (world.rank() == 0) {
      const std::vector<nlohmann::json> want = run_lines(folder / "one");
      expect_same(run_lines(folder / "two"), want);
      std::set<int64_t> samples;
      for (const nlohmann::json& line : want) {
        samples.insert(line.at("samples").get<int64_t>());
      }
      EXPECT_GT(samples.size(), 1U) << "all steps have the same sizes";
    }
  });
}

TEST_F(DynamicTrainingTest, WhatDoesNotCombineIsRefusedByName) {
  const auto refusal = [&](const std::vector<std::string>& more) {
    return error_of(ErrorKind::kConfig,
                    [&] { check_dynamic_sequence(config(folder_.path(), "run", more)); });
  };
  EXPECT_THAT(refusal({"parallel.sequence=3"}), HasSubstr("must be a power of two"));
  EXPECT_THAT(refusal({"parallel.tensor=2"}), HasSubstr("does not go with parallel.tensor"));
  EXPECT_THAT(refusal({"parallel.pipeline=2"}), HasSubstr("does not go with parallel.pipeline"));
  EXPECT_THAT(refusal({"parallel.zero_stage=3"}), HasSubstr("zero_stage 3"));
  EXPECT_THAT(refusal({"parallel.zero_stage=2"}), HasSubstr("reduce_each_micro_batch=false"));
  EXPECT_THAT(refusal({"train.vram_budget=8GiB"}), HasSubstr("train.vram_budget"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { (void)config(folder_.path(), "run", {"data.buckets={}"}); }),
              HasSubstr("unless data.buckets says"));
}

}  // namespace dynamic_sequence_test
}  // namespace kinora::train
