// Steps in which each size has its own number of sequence ranks against the same samples on one
// rank.
#include "kinora/train/dynamic_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/io/image.h"
#include "kinora/parallel/sequence_schedule.h"
#include "kinora/train/bench/random_batch.h"
#include "kinora/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/places.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace dynamic_sequence_test {

using testing::HasSubstr;

constexpr double kRounding = 1e-5;  // of sums in another order

/// Steps of clips and pictures of several sizes.
class MixedRun {
 public:
  MixedRun(const RunConfig& config, const comm::Group& world)
      : config_(config),
        mesh_(world, config.parallel.mesh()),
        objective_(diffusion::make_objective(config.objective, config.model.learn_sigma)),
        trainable_(config_, mesh_, at::kCPU, kSeed),
        step_(trainable_.model(), trainable_.boosted(), objective_, nullptr,
              {.seed = kSeed,
               .label_dropout = 0.3,
               .model = config.model,
               .ranks = mesh_.gradient_ranks(),
               .divide_among = [this](int64_t ranks) { trainable_.divide_among(ranks); },
               .most_ranks = mesh_.shape().sequence}) {
    diffusion::move_to(objective_, at::kCPU);
    randomise_zeros(trainable_.model().named_parameters(), trainable_.arena());
    trainable_.arena().reset_averages();
  }

  /// Those with `spread` as a schedule of the seconds has them; else all on this rank, as usual.
  void step(bool spread, const std::vector<parallel::SecondsByDegree>& seconds, bool is_bad,
            Outcome* outcome) {
    const std::vector<data::Batch> all = batches(is_bad);
    SpreadPasses passes;
    std::vector<data::Batch> own;
    if (spread) {
      for (const auto& placed :
           parallel::schedule_sequences({0, 1, 1, 2, 1}, seconds, mesh_.world().size()).passes) {
        if (placed.is_of(mesh_.world().rank())) {
          own.push_back(all[placed.pass]);
          passes.ranks.push_back(placed.ranks);
        }
      }
      for (const data::Batch& batch : all) {
        passes.samples += batch.images.size(0);
      }
    }
    const at::Tensor loss = step_.forward_backward(spread ? own : all, steps_, {}, passes);
    const optim::StepResult result =
        trainable_.optimizer().wait_report(trainable_.boosted().enqueue_update(1e-2, loss));
    EXPECT_EQ(result.skipped, is_bad);
    if (!is_bad) {
      outcome->losses.push_back(result.loss);
      outcome->norms.push_back(result.grad_norm);
    }
    ++steps_;
  }

  Outcome outcome(bool spread, const std::vector<parallel::SecondsByDegree>& seconds) {
    Outcome outcome;
    for (const bool is_bad : {false, true, false}) {
      step(spread, seconds, is_bad, &outcome);
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
      batches.push_back(random_batch(config_.model, shape, first, size, 0, at::kCPU));
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
  Trainable trainable_;
  TrainingStep step_;
  int64_t steps_ = 0;
};

class DynamicSequenceTest : public testing::TestWithParam<int64_t> {};

TEST_P(DynamicSequenceTest, EveryStageEqualsOneRank) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    using Scheme = parallel::SequenceScheme;
    constexpr double kNever = std::numeric_limits<double>::infinity();
    // Clips on all ranks and on two beside pictures on one; all on one, so that a rank has none;
    // all on all, as without dynamic sequences.
    const std::vector<std::vector<parallel::SecondsByDegree>> choices = {
        {{9., 5., 3.}, {1., 1., 1.}, {4., 2., 2.}},
        {{1., 1., 1.}, {9., 9., 9.}, {1., 1., 1.}},
        {{kNever, kNever, 1.}, {kNever, kNever, 1.}, {kNever, kNever, 1.}}};
    struct Case {
      inference::Path path;
      int stage;
      Scheme scheme;
      size_t choice;
    };
    // Each rank computes the reference in a group of its own.
    std::map<inference::Path, Outcome> want;
    for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
      RunConfig config = tiny_video("stdit3");
      config.path = path;
      want[path] = MixedRun(config, {}).outcome(/*spread=*/false, {});
      ASSERT_GT(want[path].norms[0], config.optim.max_grad_norm) << "clipping is not seen";
    }
    for (const Case& c : {Case{inference::Path::kPlain, 0, Scheme::kUlysses, 0},
                          Case{inference::Path::kFast, 1, Scheme::kDsp, 0},
                          Case{inference::Path::kFast, 2, Scheme::kUlysses, 1},
                          Case{inference::Path::kPlain, 1, Scheme::kRing, 0},
                          Case{inference::Path::kFast, 0, Scheme::kFastSeq, 2}}) {
      SCOPED_TRACE("stage " + std::to_string(c.stage) + ", " +
                   std::string(parallel::to_string(c.scheme)));
      RunConfig config = tiny_video("stdit3");
      config.path = c.path;
      config.dynamic_sequence = true;
      config.parallel.sp_size = world.size();
      config.parallel.sequence_scheme = c.scheme;
      config.parallel.zero_stage = c.stage;
      config.parallel.reduce_each_micro_batch = false;
      std::vector<parallel::SecondsByDegree> seconds = choices[c.choice];
      for (parallel::SecondsByDegree& of : seconds) {
        of.erase(of.begin(), of.begin() + (world.size() == 2 ? 1 : 0));
      }
      expect_close(MixedRun(config, world).outcome(/*spread=*/true, seconds), want[c.path],
                   kRounding);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DynamicSequenceTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

// 24 pictures of three sizes.
class DynamicTrainingTest : public testing::Test {
 protected:
  DynamicTrainingTest() {
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t height = i < 8 ? 40 : (i < 12 ? 32 : 16);
      io::Image image = data::grey_image(static_cast<uint8_t>(8 * i), height, i < 8 ? 40 : height);
      for (size_t place = 0; place < image.pixels.size(); place += 7) {
        image.pixels[place] = static_cast<uint8_t>(place * static_cast<size_t>(i + 3));
      }
      folder_.write("set/c" + std::to_string(10 + i) + "/picture.png", io::encode_png(image));
    }
  }

  [[nodiscard]] static RunConfig config(const std::filesystem::path& folder, const std::string& run,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {
        "run.dir=" + (folder / run).string(),
        "data.source=folder",
        "data.path=[" + (folder / "set").string() + "]",
        R"(data.buckets={"36px": {1: [1.0, 2]}, "16px": {1: [1.0, 3]}})",
        "data.bucket_multiple=4",
        "data.bucket_ratios=square",
        "data.bucket_batches=3",
        "data.threads=1",
        "data.text=tokens",
        "text.tokenizer=" + source_path("configs/captions/spiece.model").string(),
        "model.architecture=stdit3",
        "model.depth=1",
        "model.hidden=48",
        "model.heads=4",
        "model.patch=4",
        "model.text_tokens=8",
        "model.text_encoder.layers=1",
        "model.text_encoder.width=16",
        "model.learn_sigma=false",
        "objective.kind=flow",
        "optim.eps=1e-2",
        "optim.max_grad_norm=0.5",
        "lr.value=1e-2",
        "train.steps=6",
        "train.device=cpu",
        "train.threads=1",
        "train.seed=5",
        "parallel.dynamic_sequence=true",
        "checkpoint.every=3",
        "sample.every=0",
        "sample.steps=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_config<RunConfig>({"{}", "the test"}, overrides);
  }

  [[nodiscard]] static std::vector<nlohmann::json> log(const std::filesystem::path& run) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(run / "log.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  static void expect_same(const std::vector<nlohmann::json>& got,
                          const std::vector<nlohmann::json>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].at("samples"), want[i].at("samples"));
      EXPECT_EQ(got[i].at("batches"), 3);
      for (const char* key : {"loss", "grad_norm"}) {
        EXPECT_NEAR(got[i].at(key), want[i].at(key), 1e-5 * want[i].at(key).get<double>()) << key;
      }
    }
  }

  data::TemporaryFolder folder_;
};

/// The first rank's, for all.
std::filesystem::path shared_path(const std::filesystem::path& own, const comm::Group& world) {
  constexpr int64_t kMost = 1024;
  at::Tensor letters = at::zeros({kMost}, at::kByte);
  std::ranges::copy(own.string(), letters.mutable_data_ptr<uint8_t>());
  world.broadcast(letters, 0);
  return std::string(reinterpret_cast<const char*>(letters.const_data_ptr<uint8_t>()));
}

TEST_F(DynamicTrainingTest, RunsOfManyRanksAndResumedOnesEqualThatOfOne) {
  for (const int64_t ranks : {2, 4}) {
    comm::run_on_ranks(ranks, [&](const comm::Group& world) {
      const std::filesystem::path folder = shared_path(folder_.path(), world);
      if (world.rank() == 0) {
        Trainer(config(folder, "one", {}), {}).run();
      }
      // Two choose by what they measure, four by what is counted, and stop in the middle.
      std::vector<std::string> more = {"parallel.sequence=" + std::to_string(world.size()),
                                       "parallel.zero_stage=1"};
      if (world.size() == 4) {
        more.emplace_back("train.deterministic=true");
        std::vector<std::string> first = more;
        first.emplace_back("train.steps=3");
        Trainer(config(folder, "all", first), {}, world).run();
      }
      const TrainResult result = Trainer(config(folder, "all", more),
                                         {.mode = Resume::Mode::kAuto, .checkpoint = {}}, world)
                                     .run();
      EXPECT_TRUE(result.complete);
      if (world.rank() == 0) {
        expect_same(log(folder / "all"), log(folder / "one"));
        std::set<int64_t> samples;
        for (const nlohmann::json& line : log(folder / "one")) {
          samples.insert(line.at("samples").get<int64_t>());
        }
        EXPECT_GT(samples.size(), 1U) << "all steps have the same sizes";
      }
    });
  }
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
