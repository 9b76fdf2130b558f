#include "kinora/train/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <variant>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/train/recompute_plan.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::train {
namespace run_config_test {

RunConfig parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config<RunConfig>({.text = "run: {dir: r}\n" + text, .origin = "test"}, overrides);
}

std::string refusal(const std::string& text) {
  try {
    (void)parsed(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused in " << text;
  return "";
}

TEST(RunConfigTest, DumpParsesBackToTheSame) {
  RunConfig config = parsed("");
  config.model.name = "DiT-S/2";
  config.data.path = {"a b", "c: d"};
  config.data.source = data::SourceKind::kTar;
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  config.objective.shift = 1.0 / 3.0;
  config.precision = Precision::kBf16;
  config.train.recompute = "block:3";
  config.train.fp8_scaling = ops::Fp8Scaling::kBlock;
  config.lr.value = 1.23456789012345678e-4;
  config.ema_decays = {0.9999, 0.1};
  config.sample.sampling.guidance_interval = {0.1, 0.9};
  const std::string dumped = dump_config(config);
  const auto back = parse_config<RunConfig>({.text = dumped, .origin = "dump"});
  EXPECT_EQ(dump_config(back), dumped);
  EXPECT_EQ(back.lr.value, config.lr.value);
  EXPECT_EQ(back.data.path, config.data.path);
  EXPECT_EQ(back.ema_decays, config.ema_decays);
  EXPECT_EQ(back.precision, Precision::kBf16);
  EXPECT_EQ(back.train.fp8_scaling, ops::Fp8Scaling::kBlock);
}

TEST(RunConfigTest, APipelineHasMicroBatchesByItself) {
  EXPECT_EQ(parsed("train: {global_batch: 64}").micro_batch(2), 32);
  EXPECT_EQ(parsed("train: {global_batch: 64}\nparallel: {pipeline: 2}").micro_batch(2), 4);
  EXPECT_EQ(parsed("train: {global_batch: 12}\nparallel: {pipeline: 2}").micro_batch(), 1);
  EXPECT_EQ(
      parsed("train: {global_batch: 64, micro_batch: 16}\nparallel: {pipeline: 2}").micro_batch(),
      16);
}

TEST(RunConfigTest, ConditionsAcrossKeysAreChecked) {
  EXPECT_NE(refusal("train: {global_batch: 8, micro_batch: 3}").find("divide train.global_batch"),
            std::string::npos);
  EXPECT_NE(refusal("lr: {schedule: linear, warmup: 10, horizon: 10}").find("above lr.warmup"),
            std::string::npos);
  EXPECT_NE(refusal("ema: {decays: [0.1, 0.2, 0.3, 0.4, 0.5]}").find("at most 4"),
            std::string::npos);
  EXPECT_NE(refusal("validation: {every: 1}").find("data.validation"), std::string::npos);
  EXPECT_NE(refusal("sample: {guidance_interval: [0.9, 0.1]}").find("low <= high"),
            std::string::npos);
  EXPECT_NE(refusal("objective: {kind: flow, timestep_sampling: importance}").find("uniform"),
            std::string::npos);
  EXPECT_NE(refusal("optim: {eps: 0}").find("optim.eps"), std::string::npos);
}

TEST(RunConfigTest, ImageDataHasTheKeysAndConditionsOfData) {
  const RunConfig config = parsed(
      "train: {global_batch: 12, micro_batch: 3}\n"
      "image_data: {share: 0.5, source: tar, path: [a.tar], height: 8, flip: true}");
  EXPECT_EQ(config.image_data.source, data::SourceKind::kTar);
  EXPECT_EQ(config.image_data.height, 8);
  EXPECT_EQ(config.data.height, 32);
  EXPECT_EQ(config.image_batch(), 12);
  EXPECT_EQ(config.image_micro_batch(2), 6);
  const RunConfig sized =
      parsed("image_data: {share: 0.5, global_batch: 20, micro_batch: 5, source: shapes}");
  EXPECT_EQ(sized.image_batch(), 20);
  EXPECT_EQ(sized.image_micro_batch(2), 5);
  EXPECT_THROW((void)sized.image_micro_batch(8), Error);
  EXPECT_NE(refusal("image_data: {source: folder}")
                .find("image_data.path must name one folder for "
                      "image_data.source folder"),
            std::string::npos);
  EXPECT_NE(refusal("image_data: {share: 0.5, source: tar, path: [a], frame_layout: strip, "
                    "frames: 2}")
                .find("image_data.share must be 0 unless image_data.frames is 1"),
            std::string::npos);
}

TEST(RunConfigTest, Recompute) {
  using ops::Recompute;
  EXPECT_EQ(parse_recompute("none", 12), (RecomputePlan{Recompute::kNone, 0}));
  EXPECT_EQ(parse_recompute("elementwise", 12), (RecomputePlan{Recompute::kElementwise, 0}));
  EXPECT_EQ(parse_recompute("mlp", 12), (RecomputePlan{Recompute::kMlp, 0}));
  EXPECT_EQ(parse_recompute("block", 12), (RecomputePlan{Recompute::kNone, 12}));
  EXPECT_EQ(parse_recompute("block:0", 12), (RecomputePlan{Recompute::kNone, 0}));
  EXPECT_EQ(parse_recompute("block:12", 12), (RecomputePlan{Recompute::kNone, 12}));
  EXPECT_EQ(parse_recompute("block:3,elementwise", 12),
            (RecomputePlan{Recompute::kElementwise, 3}));
  EXPECT_EQ(parse_recompute("block:12,mlp", 12), (RecomputePlan{Recompute::kMlp, 12}));
  EXPECT_EQ(parse_recompute("offload", 12), (RecomputePlan{Recompute::kNone, 0, 12}));
  EXPECT_EQ(parse_recompute("offload:0", 12), (RecomputePlan{Recompute::kNone, 0, 0}));
  EXPECT_EQ(parse_recompute("offload:5", 12), (RecomputePlan{Recompute::kNone, 0, 5}));
  EXPECT_EQ(parse_recompute("offload,mlp", 12), (RecomputePlan{Recompute::kMlp, 0, 12}));
  EXPECT_EQ(parse_recompute("offload:5,elementwise", 12),
            (RecomputePlan{Recompute::kElementwise, 0, 5}));
  EXPECT_EQ(parse_recompute("offload,block", 12), (RecomputePlan{Recompute::kNone, 12, 12}));
  EXPECT_EQ(parse_recompute("offload:5,block", 12), (RecomputePlan{Recompute::kNone, 12, 5}));
  EXPECT_EQ(parse_recompute("offload:8,block:4", 12), (RecomputePlan{Recompute::kNone, 4, 8}));
  EXPECT_EQ(parse_recompute("offload:3,block:4,mlp", 12), (RecomputePlan{Recompute::kMlp, 4, 3}));
  EXPECT_EQ(parse_recompute("offload,block:4,elementwise", 12),
            (RecomputePlan{Recompute::kElementwise, 4, 8}));
  EXPECT_EQ(parse_recompute("offload,block:12,mlp", 12), (RecomputePlan{Recompute::kMlp, 12, 0}));
  for (const char* text : {"none", "mlp", "block", "block:3", "block:3,elementwise", "offload",
                           "offload:5", "offload:5,block", "offload,block", "offload,block:4,mlp",
                           "offload:3,block:4,elementwise"}) {
    EXPECT_EQ(recompute_text(parse_recompute(text, 12), 12), text);
  }
  EXPECT_EQ(recompute_text(parse_recompute("offload:0,block:0", 12), 12), "none");
  EXPECT_EQ(recompute_text(parse_recompute("block:12,mlp", 12), 12), "block");
  for (const char* wrong : {"offload:",
                            "offload:13",
                            "offload,",
                            "offload:3,",
                            "offload:3,block:13",
                            "offload:3,block,mlp",
                            "offload:3,block:2,",
                            "offload:3,block:2,block",
                            "offload:3,mlp,block:2",
                            "offload:3,offload:3",
                            "offloaded",
                            "block,mlp",
                            "block:3,offload",
                            "mlp,offload",
                            "",
                            "all",
                            "block:3,",
                            "block:3,block",
                            "block:3mlp",
                            "mlp,block:3",
                            "block:,mlp",
                            "block:",
                            "block:13",
                            "block:-1",
                            "block:3x",
                            "block: 3",
                            "Block",
                            "block:99999999999999999999"}) {
    try {
      (void)parse_recompute(wrong, 12);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_NE(std::string(error.what()).find("K from 0 to 12, got " + std::string(wrong)),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(RunConfigTest, BlocksAtTheHostAndThoseComputedAgainAreNotMoreThanThereAre) {
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [] { (void)parse_recompute("offload:9,block:4,mlp", 12); }),
      testing::HasSubstr(
          "train.recompute=offload:9,block:4,mlp has 9 blocks wait at the host "
          "beside 4 that keep only their input: more than the 12 there are. Hint: offload:8"));
}

TEST(RunConfigTest, ModelTakesSizeAndClassesFromTheData) {
  const RunConfig config = parsed("model: {name: DiT-S/4}\ndata: {height: 32, width: 64}");
  const models::ModelConfig model = inference::resolved_model(config, 7);
  EXPECT_EQ(model.height, 32);
  EXPECT_EQ(model.width, 64);
  EXPECT_EQ(model.num_classes, 7);
  EXPECT_EQ(model.transformer.hidden, 384);
  EXPECT_EQ(model.time_scale, 1.0);
  RunConfig flow = config;
  flow.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  EXPECT_EQ(inference::resolved_model(flow, 7).time_scale, 1000.0);
  flow.model.num_classes = 6;
  EXPECT_THROW((void)inference::resolved_model(flow, 7), Error);
  flow.model.num_classes = 8;
  EXPECT_EQ(inference::resolved_model(flow, 7).num_classes, 8);
}

TEST(RunConfigTest, EveryRecipeParsesAndDescribesAModel) {
  int count = 0;
  const auto folder = source_path("configs");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") {
      continue;
    }
    ++count;
    const auto config = load_config<RunConfig>(entry.path(), {"run.dir=r"});
    std::optional<inference::LatentSize> latents;
    if (config.data.source == data::SourceKind::kLatents) {
      latents = inference::LatentSize{.shape = {.channels = config.model.in_channels,
                                                .height = config.model.height,
                                                .width = config.model.width},
                                      .frames = config.data.frames};
    }
    const models::ModelConfig model = inference::resolved_model(config, 1, latents);
    EXPECT_GT(models::forward_macs(model), 0.0) << entry.path();
    EXPECT_NO_THROW((void)parse_recompute(config.train.recompute, model.transformer.depth))
        << entry.path();
    EXPECT_NO_THROW((void)pipelines::make_sampler(
        config.sample.sampling, diffusion::make_objective(config.objective, model.learn_sigma)))
        << entry.path();
  }
  EXPECT_GE(count, 2);
}

// So nothing absurd gets as far as an allocation. Only a seed may be any number of its type.
TEST(RunConfigTest, EveryNumberHasARange) {
  RunConfig config;
  Fields fields;
  describe(fields, config);
  int64_t count = 0;
  for (const Field& field : fields.all()) {
    const bool is_number = std::holds_alternative<int64_t*>(field.target) ||
                           std::holds_alternative<double*>(field.target) ||
                           std::holds_alternative<std::vector<int64_t>*>(field.target) ||
                           std::holds_alternative<std::vector<double>*>(field.target);
    if (!is_number || field.key.ends_with("seed")) {
      continue;
    }
    EXPECT_TRUE(std::isfinite(field.range.min) && std::isfinite(field.range.max)) << field.key;
    ++count;
  }
  EXPECT_GT(count, 80);
  EXPECT_NE(refusal("train: {seed: 99999999999999999999}").find("integers have 64 bits"),
            std::string::npos);
}

}  // namespace run_config_test
}  // namespace kinora::train
