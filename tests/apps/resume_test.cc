// Training to the end equals training, stopping and resuming, to the last bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <span>
#include <vector>

#include "kinora/io/safetensors.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace resume_test {

using testing::HasSubstr;

struct Case {
  std::string name;
  Arguments overrides;
};

std::ostream& operator<<(std::ostream& stream, const Case& value) {
  return stream << value.name;
}

class ResumeTest : public RunTest, public testing::WithParamInterface<Case> {
 protected:
  static Arguments with(Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_P(ResumeTest, TwentyStepsEqualTenAndTen) {
  const Arguments& overrides = GetParam().overrides;
  train_well(run_dir("whole"), with(overrides, {"train.steps=20"}));
  train_well(run_dir("parts"), with(overrides, {"train.steps=10"}));
  ASSERT_EQ(checkpoint_steps(run_dir("parts")), (std::vector<int64_t>{10}));
  train_well(run_dir("parts"), with(overrides, {"train.steps=20", "--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-20",
                    run_dir("parts") / "checkpoints/step-20");
  expect_same_log(run_dir("whole"), run_dir("parts"), 20);
  // That the bits are the same would mean little if they did not change.
  const auto before = arrays_of(run_dir("whole") / "checkpoints/step-10");
  const auto after = arrays_of(run_dir("whole") / "checkpoints/step-20");
  for (const auto& [name, bytes] : before) {
    EXPECT_TRUE(bytes != after.at(name) || name == "buffers.safetensors" ||
                name == "base.safetensors")
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, ResumeTest,
    testing::Values(
        Case{"iddpm_fp32", {}}, Case{"iddpm_bf16", {"train.precision=bf16"}},
        Case{"iddpm_fp16", {"train.precision=fp16"}},
        // 21 timesteps, so that the history of ten losses each is full before step 10.
        Case{"iddpm_importance",
             {"objective.timestep_sampling=importance", "objective.timesteps=21",
              "train.global_batch=96", "model.depth=1"}},
        Case{"v_min_snr",
             {"objective.prediction=v", "objective.betas=scaled_linear",
              "objective.zero_terminal_snr=true", "objective.loss_weights=min_snr",
              "data.validation=8", "validation.every=4", "sample.every=3", "sample.count=2"}},
        Case{"sample_p2_importance",
             {"objective.prediction=sample", "objective.betas=squared_cosine",
              "objective.loss_weights=p2", "objective.timestep_sampling=importance",
              "objective.timesteps=21", "train.global_batch=96", "model.depth=1"}},
        Case{"speedit",
             {"objective.timestep_sampling=speedit", "objective.loss_weights=p2",
              "train.precision=bf16"}},
        Case{"flow_fp32", {"objective.kind=flow", "model.learn_sigma=false"}},
        Case{"flow_bf16",
             {"objective.kind=flow", "model.learn_sigma=false", "train.precision=bf16"}},
        Case{"accumulated", {"train.micro_batch=2", "optim.max_grad_norm=0.1"}},
        Case{"two_averages", {"ema.decays=[0.9, 0.999]", "optim.weight_decay=0.01"}},
        Case{"no_average", {"ema.decays=[]"}}, Case{"lion", {"optim.rule=lion"}},
        Case{"sgd", {"optim.rule=sgd", "optim.beta1=0.8", "lr.value=0.03"}},
        Case{"muon", {"optim.rule=muon"}}, Case{"adafactor", {"optim.rule=adafactor"}},
        Case{"came", {"optim.rule=came"}}, Case{"lamb", {"optim.rule=lamb"}},
        Case{"prodigy", {"optim.rule=prodigy", "lr.value=1", "optim.d0=1e-4"}},
        Case{"schedule_free",
             {"optim.rule=schedule_free", "data.validation=8", "validation.every=4",
              "sample.every=3", "sample.count=2"}},
        Case{"schedule_free_alone", {"optim.rule=schedule_free", "ema.decays=[]"}},
        Case{"prodigy_bf16",
             {"optim.rule=prodigy", "lr.value=1", "optim.d0=1e-3", "train.precision=bf16",
              "optim.master=bf16"}},
        Case{"muon_bf16", {"optim.rule=muon", "train.precision=bf16", "optim.master=bf16"}},
        Case{"adamw_8bit", {"optim.moments=8bit"}},
        Case{"lion_8bit", {"optim.rule=lion", "optim.moments=8bit"}},
        Case{"bf16_masters", {"train.precision=bf16", "optim.master=bf16"}},
        Case{"smallest_state", {"train.precision=bf16", "optim.master=bf16", "optim.moments=8bit"}},
        Case{"recomputed", {"train.recompute=block:1"}},
        Case{"offloaded", {"model.path=fast", "train.recompute=offload"}},
        Case{"fp8_activations",
             {"model.path=fast", "train.precision=bf16", "train.fp8_activations=true"}},
        Case{"flipped_cosine",
             {"data.flip=true", "lr.schedule=cosine", "lr.warmup=5", "lr.horizon=18"}},
        Case{"deterministic", {"train.deterministic=true"}},
        // Both sets end within steps.
        Case{"clips_and_images",
             joined(kReads,
                    {"data.source=moving_shapes", "data.frames=4", "data.count=20",
                     "model.architecture=stdit2", "model.hidden=48", "frame_masks.image_head=0.3",
                     "image_data.share=0.4", "image_data.global_batch=12",
                     "image_data.micro_batch=6", "image_data.height=24", "image_data.width=16",
                     "image_data.count=30", "image_data.text=tokens"})},
        Case{"given_by_weights",
             joined(kReads,
                    {"data.source=moving_shapes", "data.frames=4", "model.architecture=open_sora2",
                     "model.given_embedders=true", "model.parallel_depth=1",
                     "model.learn_sigma=false", "objective.kind=flow",
                     "objective.shift_by_tokens=[1,3]", "objective.token_shift=opensora2",
                     "frame_masks.weights.t2v=1", "frame_masks.weights.i2v_head=5",
                     "frame_masks.weights.i2v_loop=1", "frame_masks.weights.i2v_tail=1"})},
        // The set of 20 images ends within a step.
        Case{"short_epochs", {"data.count=20", "data.queue=1"}},
        Case{"validated_and_sampled",
             {"data.validation=8", "validation.every=4", "sample.every=3", "sample.count=2"}}),
    [](const auto& info) { return info.param.name; });

class SmallStatesTest : public RunTest {
 protected:
  /// Of the last 100 of 200 steps, which see the same samples, times and noise in every run.
  [[nodiscard]] double loss_of(const std::string& name, Arguments keys) const {
    keys.insert(keys.end(), {"train.steps=200", "train.precision=bf16", "checkpoint.every=0"});
    train_well(run_dir(name), keys);
    const std::vector<LogLine> log = read_log(run_dir(name));
    double sum = 0.0;
    for (size_t i = 100; i < 200; ++i) {
      sum += log.at(i).at("loss").get<double>();
    }
    return sum / 100;
  }
};

TEST_F(SmallStatesTest, LearnAsWellAsFp32) {
  constexpr double kTolerance = 0.005;
  const double want = loss_of("fp32", {});
  EXPECT_NEAR(loss_of("moments", {"optim.moments=8bit"}), want, kTolerance * want);
  EXPECT_NEAR(loss_of("masters", {"optim.master=bf16"}), want, kTolerance * want);
  EXPECT_NEAR(loss_of("both", {"optim.moments=8bit", "optim.master=bf16"}), want,
              kTolerance * want);
}

TEST_F(SmallStatesTest, OtherFormatsAreRefusedOnResume) {
  train_well(run_dir("run"), {"train.steps=2", "optim.moments=8bit"});
  const Outcome outcome = train(run_dir("run"), {"train.steps=4", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("has moments in 8bit, but this run keeps them in fp32. Hint: "
                                     "optim.moments=8bit"));
}

TEST_F(SmallStatesTest, Bf16MastersWantBf16) {
  const Outcome outcome = train(run_dir("run"), {"optim.master=bf16"});
  EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Hint: train.precision=bf16, or optim.master=fp32"));
}

class ImportanceTest : public RunTest {};

TEST_F(ImportanceTest, HistoryIsFullInTheRunsAbove) {
  train_well(run_dir("run"), {"objective.timestep_sampling=importance", "objective.timesteps=21",
                              "train.global_batch=96", "model.depth=1", "train.steps=10"});
  const auto manifest =
      nlohmann::json::parse(read_text(run_dir("run") / "checkpoints/step-10/manifest.json"));
  const auto& counts = manifest.at("state").at("timestep_counts");
  ASSERT_EQ(counts.size(), 21U);
  for (const auto& count : counts) {
    EXPECT_EQ(count, 10);
  }
}

class PinnedTest : public RunTest {
 protected:
  /// Changes the state in the manifest of "parts" at step 10, a deterministic run's.
  void change_state(const std::function<void(nlohmann::json&)>& change) const {
    train_well(run_dir("parts"), {"train.deterministic=true", "train.steps=10"});
    const auto path = run_dir("parts") / "checkpoints/step-10/manifest.json";
    auto manifest = nlohmann::json::parse(read_text(path));
    change(manifest.at("state"));
    write_text(path, manifest.dump());
  }
  [[nodiscard]] Outcome resume() const {
    return train(run_dir("parts"),
                 {"train.deterministic=true", "train.steps=20", "--resume", "auto"});
  }
};

// What a checkpoint was before it pinned anything.
TEST_F(PinnedTest, OlderCheckpointsAreResumed) {
  change_state([](nlohmann::json& state) { EXPECT_EQ(state.erase("pinned"), 1U); });
  const Outcome outcome = resume();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the checkpoint pins no algorithms"));
  train_well(run_dir("whole"), {"train.deterministic=true", "train.steps=20"});
  expect_same_state(run_dir("whole") / "checkpoints/step-20",
                    run_dir("parts") / "checkpoints/step-20");
}

TEST_F(PinnedTest, OtherVersionsAreNamed) {
  change_state(
      [](nlohmann::json& state) { state.at("pinned").at("versions").at("libtorch") = "1.0.0"; });
  const Outcome outcome = resume();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("libtorch was 1.0.0 and is now "));
}

TEST_F(PinnedTest, DamagedLinesAreRefused) {
  change_state([](nlohmann::json& state) {
    state.at("pinned").at("products") = nlohmann::json::array({"NVIDIA H200|130100|m=1"});
  });
  const Outcome outcome = resume();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the checkpoint pins an algorithm that cannot be read"));
}

class UnchangedTest : public RunTest {};

TEST_F(UnchangedTest, ValidationAndSamplingChangeNothing) {
  train_well(run_dir("bare"), {"data.validation=8"});
  train_well(run_dir("busy"),
             {"data.validation=8", "validation.every=3", "sample.every=4", "sample.count=2"});
  expect_same_state(run_dir("bare") / "checkpoints/step-20",
                    run_dir("busy") / "checkpoints/step-20");
  EXPECT_TRUE(std::filesystem::exists(run_dir("busy") / "samples/step-16.png"));
  EXPECT_TRUE(read_log(run_dir("busy"))[2].contains("validation_raw"));
}

TEST_F(UnchangedTest, SavingOftenOrResumingOftenChangesNothing) {
  train_well(run_dir("bare"), {"checkpoint.every=0"});
  EXPECT_EQ(checkpoint_steps(run_dir("bare")), (std::vector<int64_t>{20}));
  for (const char* steps : {"train.steps=1", "train.steps=2", "train.steps=13", "train.steps=20"}) {
    train_well(run_dir("often"), {steps, "checkpoint.every=1", "--resume", "auto"});
  }
  expect_same_state(run_dir("bare") / "checkpoints/step-20",
                    run_dir("often") / "checkpoints/step-20");
  expect_same_log(run_dir("bare"), run_dir("often"), 20);
}

TEST_F(UnchangedTest, AnotherSeedChangesTheWeights) {
  train_well(run_dir("a"), {"train.steps=2"});
  train_well(run_dir("b"), {"train.steps=2", "train.seed=1"});
  const auto a = arrays_of(run_dir("a") / "checkpoints/step-2");
  for (const auto& [name, bytes] : arrays_of(run_dir("b") / "checkpoints/step-2")) {
    EXPECT_TRUE(bytes != a.at(name) || name == "buffers.safetensors" || name == "base.safetensors")
        << name;
  }
}

// Resuming in a new directory leaves the old one as it is.
TEST_F(UnchangedTest, ResumingFromAPathBranchesOff) {
  train_well(run_dir("a"), {"train.steps=20"});
  const auto before = arrays_of(run_dir("a") / "checkpoints/step-10");
  train_well(run_dir("b"),
             {"train.steps=20", "--resume", (run_dir("a") / "checkpoints/step-10").string()});
  expect_same_state(run_dir("a") / "checkpoints/step-20", run_dir("b") / "checkpoints/step-20");
  EXPECT_EQ(read_log(run_dir("b")).size(), 10U);
  EXPECT_TRUE(before == arrays_of(run_dir("a") / "checkpoints/step-10"));
}

// Latents come from a file, have no pixels to be shown, and give the model its size.
TEST_F(UnchangedTest, LatentsResumeExactly) {
  std::vector<float> latents(size_t{24} * 4 * 8 * 8);
  for (size_t i = 0; i < latents.size(); ++i) {
    latents[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
  }
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 24; ++i) {
    labels.push_back(i % 3);
  }
  const std::vector<io::SafetensorsTensor> tensors = {{.name = "latents",
                                                       .dtype = DType::kF32,
                                                       .shape = {24, 4, 8, 8},
                                                       .data = std::as_bytes(std::span(latents))},
                                                      {.name = "labels",
                                                       .dtype = DType::kI64,
                                                       .shape = {24},
                                                       .data = std::as_bytes(std::span(labels))}};
  const std::filesystem::path file = folder() / "latents.safetensors";
  io::write_safetensors(file, tensors);
  Arguments arguments = {"data.source=latents", "data.path=[" + file.string() + "]",
                         "model.in_channels=4", "data.validation=4", "validation.every=4"};
  train_well(run_dir("whole"), arguments);
  arguments.insert(arguments.end(), {"train.steps=10", "--resume", "auto"});
  train_well(run_dir("parts"), arguments);
  arguments.emplace_back("train.steps=20");
  train_well(run_dir("parts"), arguments);
  expect_same_state(run_dir("whole") / "checkpoints/step-20",
                    run_dir("parts") / "checkpoints/step-20");
  expect_same_log(run_dir("whole"), run_dir("parts"), 20);
}

class LearningRateTest : public RunTest {
 protected:
  /// Half a cosine after five steps of warm-up, to a tenth at step 18 (optimizer steps from 0).
  static double expected(int64_t step) {
    if (step < 5) {
      return 1e-3 * static_cast<double>(step + 1) / 5.0;
    }
    const double progress = std::min(static_cast<double>(step - 5) / 13.0, 1.0);
    return 1e-3 * (0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  }

  static void expect_closed_form(const std::filesystem::path& run) {
    const std::vector<LogLine> log = read_log(run);
    ASSERT_EQ(log.size(), 20U);
    for (int64_t step = 0; step < 20; ++step) {
      EXPECT_NEAR(log[static_cast<size_t>(step)].at("lr").get<double>(), expected(step), 1e-15)
          << step;
    }
  }

  const Arguments schedule_ = {"lr.schedule=cosine", "lr.value=1e-3", "lr.warmup=5",
                               "lr.horizon=18", "lr.final_fraction=0.1"};
};

TEST_F(LearningRateTest, FollowsTheScheduleInOptimizerStepsWithAccumulationAndAfterResume) {
  Arguments arguments = schedule_;
  train_well(run_dir("plain"), arguments);
  expect_closed_form(run_dir("plain"));
  arguments.emplace_back("train.micro_batch=2");
  train_well(run_dir("accumulated"), arguments);
  expect_closed_form(run_dir("accumulated"));
  arguments.insert(arguments.end(), {"train.steps=7", "--resume", "auto"});
  train_well(run_dir("resumed"), arguments);
  arguments.emplace_back("train.steps=20");
  train_well(run_dir("resumed"), arguments);
  expect_closed_form(run_dir("resumed"));
}

class RuleTest : public RunTest {};

TEST_F(RuleTest, MomentsOfAnotherRuleAreNamed) {
  train_well(run_dir("run"), {"train.steps=2", "optim.rule=lion"});
  const Outcome outcome = train(run_dir("run"), {"train.steps=4", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("has the moments of lion, but this run updates by adamw. Hint: "
                        "optim.rule=lion"));
  EXPECT_EQ(checkpoint_steps(run_dir("run")), (std::vector<int64_t>{2}));
}

}  // namespace resume_test
}  // namespace kinora::apps
