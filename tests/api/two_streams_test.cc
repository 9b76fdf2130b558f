// A family of the program's own goes through everything that the house does with a model: what it
// takes is two_streams.cc, one row included.
#include "tests/api/two_streams.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/trained_model.h"
#include "kinora/kinora.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/families.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora {
namespace two_streams_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::SizeIs;

/// Coloured shapes of 16 x 16 pixels from their names.
const std::string kRecipe = R"(
run: {dir: unset}
model:
  {architecture: two_streams, depth: 2, hidden: 32, heads: 2, patch: 4, text_tokens: 16,
   learn_sigma: false, text_encoder: {layers: 1, width: 16, heads: 2, mlp: 32}}
data: {source: shapes, height: 16, width: 16, text: tokens}
text: {tokenizer: )" + source_path("configs/captions/spiece.model").string() +
                            R"(}
objective: {kind: flow}
train: {steps: 4, global_batch: 4, label_dropout: 0.25, device: cpu, self_test: true}
lr: {schedule: constant, value: 2.0e-3, warmup: 0}
ema: {decays: [0.9]}
checkpoint: {every: 2}
sample: {every: 0, steps: 2}
)";

class TwoStreamsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    [[maybe_unused]] static const bool kOnce = [] {
      models::add_two_streams();
      return true;
    }();
  }

  TwoStreamsTest() : recipe_(folder_.write("recipe.yaml", kRecipe)) {}

  [[nodiscard]] std::vector<std::string> to(const std::string& name,
                                            std::vector<std::string> overrides = {}) const {
    overrides.push_back("run.dir=" + in(name).string());
    return overrides;
  }
  [[nodiscard]] fs::path in(const std::string& name) const { return folder_.path() / name; }
  FinishedRun train(const std::string& name, const std::vector<std::string>& overrides = {},
                    const std::string& resume = "never") const {
    return train_recipe(recipe_, to(name, overrides), resume);
  }
  [[nodiscard]] train::RunConfig config(const std::vector<std::string>& overrides = {}) const {
    return load_config<train::RunConfig>(recipe_.string(), to("planned", overrides));
  }
  /// All trained weights, one after the other.
  [[nodiscard]] at::Tensor weights(const std::string& name, bool averaged = false) const {
    inference::TrainedModel trained = inference::load_trained(
        in(name), {.ema = averaged, .device = DeviceChoice::kCpu, .says = false});
    std::vector<at::Tensor> all;
    for (const auto& [path, parameter] : trained.model->named_parameters()) {
      all.push_back(parameter->value.detach().flatten());
    }
    return at::cat(all);
  }

  data::TemporaryFolder folder_;
  fs::path recipe_;
};

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST_F(TwoStreamsTest, HouseKnowsIt) {
  const std::string help = dump_config(config());
  EXPECT_THAT(help, HasSubstr("architecture: two_streams"));
  EXPECT_EQ(models::families().back().name, "TwoStreams");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { models::add_two_streams(); }),
              HasSubstr("there is a family two_streams already"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)config({"model.architecture=three"}); }),
              HasSubstr("two_streams"));
}

// Learning to draw takes longer; that the loss falls shows that both streams are trained, and the
// self-test of step 20 that nothing is left out.
TEST_F(TwoStreamsTest, Learns) {
  const double first = train("short", {"train.steps=1"}).last_loss;
  const double last = train("long", {"train.steps=60", "checkpoint.every=60"}).last_loss;
  EXPECT_LT(last, 0.9 * first);
}

TEST_F(TwoStreamsTest, GoesOnToTheBit) {
  const FinishedRun whole = train("whole");
  EXPECT_EQ(train("parts", {"train.steps=2"}).steps, 2);
  const FinishedRun rest = train("parts", {}, "auto");
  EXPECT_EQ(rest.steps, 4);
  EXPECT_EQ(rest.last_loss, whole.last_loss);
  EXPECT_TRUE(weights("parts").equal(weights("whole")));
  EXPECT_TRUE(weights("parts", true).equal(weights("whole", true)));
  EXPECT_FALSE(weights("whole").equal(weights("whole", true)));
}

// A block that is computed again adds up what both streams tell of the time before other blocks do.
TEST_F(TwoStreamsTest, RecomputationChangesNothingButRounding) {
  const FinishedRun kept = train("kept");
  for (const char* blocks : {"1", "2"}) {
    const std::string name = std::string("again") + blocks;
    EXPECT_NEAR(train(name, {std::string("train.recompute=block:") + blocks}).last_loss,
                kept.last_loss, 1e-5);
    EXPECT_LT(distance(weights(name), weights("kept")), 1e-5) << blocks;
  }
}

TEST_F(TwoStreamsTest, HalfTypesAreNear) {
  train("fp32");
  train("bf16", {"train.precision=bf16"});
  EXPECT_LT(distance(weights("bf16").to(at::kFloat), weights("fp32")), 0.05);
}

TEST_F(TwoStreamsTest, DrawsFromPromptsWithGuidance) {
  train("run", {"train.steps=60", "checkpoint.every=60"});
  Model model = load(in("run"), {.device = "cpu"});
  const DrawOptions options{.captions = {"red circle", "blue cross"}, .guidance = 1.0};
  const at::Tensor plain = draw_tensor(model, options);
  EXPECT_EQ(plain.sizes(), (std::vector<int64_t>{2, 3, 16, 16}));
  EXPECT_TRUE(plain.isfinite().all().item<bool>());
  DrawOptions guided = options;
  guided.guidance = 5.0;
  EXPECT_GT(distance(draw_tensor(model, guided), plain), 1e-5);
  // The words of one prompt do not reach the other, and neither does its padding.
  DrawOptions other = options;
  other.captions = {"red circle", "a very yellow square"};
  const at::Tensor drawn = draw_tensor(model, other);
  EXPECT_LT(distance(drawn[0], plain[0]), 1e-5);
  EXPECT_GT(distance(drawn[1], plain[1]), 1e-5);
  DrawOptions alone = options;
  alone.batch = 1;
  EXPECT_LT(distance(draw_tensor(model, alone), plain), 1e-5);
  EXPECT_THAT(draw(model, options), SizeIs(2));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)draw(model, {.classes = {1}}); }),
              HasSubstr("conditioned on texts, not on classes"));
}

TEST_F(TwoStreamsTest, ConvertsAndIsReadBack) {
  train("run");
  const fs::path file = in("weights.safetensors");
  const inference::Converted converted =
      inference::convert_weights({.from = in("run"), .to = file});
  EXPECT_TRUE(converted.has_model);
  EXPECT_TRUE(converted.fit.is_whole());
  Model of_run = load(in("run"), {.device = "cpu"});
  Model of_file = load(file, {.device = "cpu"});
  const DrawOptions options{.captions = {"green triangle"}};
  EXPECT_TRUE(draw_tensor(of_file, options).equal(draw_tensor(of_run, options)));
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [&] { (void)inference::convert_weights({.from = in("run"), .to = in("folder")}); }),
      HasSubstr("must be one of DiT, PixArt, LatteT2V, SD3, Flux, HunyuanVideo, CogVideoX, Wan, "
                "LTXVideo, UNet and "
                "ClassUNet for "
                "diffusers, got "
                "TwoStreams"));
  // Another run starts from them.
  train("next", {"checkpoint.init_from=" + file.string(), "lr.value=0", "train.steps=2"});
  EXPECT_TRUE(weights("next").equal(weights("run", true)));
}

TEST_F(TwoStreamsTest, IsTunedByUpdatesOfLinears) {
  train("run");
  const fs::path file = in("weights.safetensors");
  (void)inference::convert_weights({.from = in("run"), .to = file});
  const FinishedRun tuned =
      train("tuned", {"checkpoint.init_from=" + file.string(), "finetune.lora.targets=[blocks.*]",
                      "finetune.lora.rank=2"});
  EXPECT_GT(tuned.last_loss, 0.0);
  using Updates = inference::ConvertOptions::Updates;
  const inference::Converted adapter = inference::convert_weights(
      {.from = in("tuned"), .to = in("adapter"), .updates = Updates::kOwn});
  // Modulation, qkv, proj, fc1 and fc2 of both streams; of the text in the last block the first
  // two.
  EXPECT_EQ(adapter.num_tensors, 17);
  Model merged = load(in("tuned"), {.device = "cpu"});
  Model added = load(file, {.device = "cpu", .adapters = {in("adapter").string()}});
  const DrawOptions options{.captions = {"green triangle"}};
  EXPECT_LT(distance(draw_tensor(added, options), draw_tensor(merged, options)), 1e-5);
}

TEST_F(TwoStreamsTest, ItsMemoryIsPlanned) {
  std::vector<std::string> assumed;
  const train::RunConfig planned = train::without_data(config(), assumed);
  EXPECT_GT(models::forward_macs(planned.model), 0.0);
  const train::MemoryPlan plan = train::plan_memory(planned, {});
  EXPECT_GT(plan.peak, 0);
  ASSERT_THAT(plan.layers, SizeIs(2));
  EXPECT_EQ(plan.layers[0].name, "blocks.0");
  EXPECT_GT(plan.layers[0].bytes, plan.layers[1].bytes) << "the last block ends the text's stream";
  EXPECT_GT(plan.layers[1].bytes, 0);
  const train::MemoryPlan again =
      train::plan_memory(train::without_data(config({"train.recompute=block:2"}), assumed), {});
  EXPECT_LT(again.layers[0].bytes, plan.layers[0].bytes);
}

TEST_F(TwoStreamsTest, WhatItCannotDoIsRefused) {
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)train("fast", {"model.path=fast"}); }),
              HasSubstr("TwoStreams has no fast path"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)train("none", {"data.text=none"}); }),
              HasSubstr("the data must have tokens, up to 16 (model.text_tokens), got none"));
}

/// The same one on all ranks of a test.
fs::path shared_folder() {
  return fs::path(testing::TempDir()) /
         ("kinora-two-streams-" + std::string(std::getenv("MASTER_PORT")));
}

class TwoStreamsRanksTest : public TwoStreamsTest, public testing::WithParamInterface<int> {};

// Every stage divides blocks of two streams among ranks, and learns what one rank does, which can
// go on from there.
TEST_P(TwoStreamsRanksTest, DivideIt) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    // Where an almost zero gradient decides, AdamW's first updates hang on its last bits.
    std::vector<std::string> overrides = {"optim.eps=1.0e-2", "ema.decays=[]"};
    train("one", overrides);
    const fs::path shared = shared_folder();
    overrides.push_back("run.dir=" + shared.string());
    std::vector<std::string> divided = overrides;
    divided.insert(divided.end(), {"train.steps=2", "train.micro_batch=1",
                                   "parallel.zero_stage=" + std::to_string(GetParam())});
    const auto run = load_config<train::RunConfig>(recipe_.string(), divided);
    EXPECT_EQ(train::Trainer(run, train::Resume::parse("never"), world).run().step, 2);
    if (world.rank() == 0) {
      EXPECT_EQ(train_recipe(recipe_, overrides, "auto").steps, 4);
      EXPECT_TRUE(at::allclose(weights(shared), weights("one"), 0.0, 2e-5));
      fs::remove_all(shared);
    }
  });
}

TEST_F(TwoStreamsTest, ItsTokensAreNotDivided) {
  comm::run_on_ranks(2, [&](const comm::Group& world) {
    train::RunConfig run = config({"parallel.sequence=2"});
    run.run_dir = shared_folder().string();
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] { train::Trainer(run, train::Resume::parse("never"), world); }),
                HasSubstr("TwoStreams cannot divide the tokens of a sample among ranks"));
    if (world.rank() == 0) {
      fs::remove_all(shared_folder());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, TwoStreamsRanksTest, testing::Values(0, 1, 2, 3),
                         testing::PrintToStringParamName());

}  // namespace two_streams_test
}  // namespace kinora
