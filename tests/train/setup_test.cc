#include "kinora/train/setup.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kinora/data/run_data.h"
#include "kinora/inference/setup.h"
#include "kinora/models/model.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace setup_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

RunConfig tiny() {
  RunConfig config;
  config.model =
      models::resolved({.in_channels = 3,
                        .height = 16,
                        .width = 16,
                        .num_classes = 10,
                        .time_scale = 1.0,
                        .transformer = {.depth = 2, .hidden = 32, .heads = 2, .patch = 2}});
  config.data.height = 16;
  config.data.width = 16;
  config.data.count = 50;
  config.train.device = DeviceChoice::kCpu;
  return config;
}

template <typename Call>
std::string refusal(const Call& call) {
  return error_of(ErrorKind::kConfig, call);
}

TEST(SetupTest, HeldOutSamplesAreNotTrained) {
  RunConfig config = tiny();
  EXPECT_EQ(data::open_data(config.data).validation, nullptr);
  config.data.validation = 8;
  const data::RunData data = data::open_data(config.data);
  ASSERT_NE(data.validation, nullptr);
  EXPECT_EQ(data.whole->size(), 50);
  std::vector<std::string> names;
  for (const data::Source* part : {data.train.get(), data.validation.get()}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      names.push_back(part->sample_name(i));
    }
  }
  EXPECT_EQ(data.validation->size(), 8);
  ASSERT_EQ(names.size(), 50U);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end()) << "each is in one part";
}

TEST(SetupTest, DataMustBeWhatTheModelTakes) {
  const RunConfig good = tiny();
  const data::RunData data = data::open_data(good.data);
  const auto fault = [&](const RunConfig& config,
                         const std::optional<inference::LatentSize>& latents = std::nullopt) {
    return refusal([&] {
      check_data(config, *data.whole, StepKind::kData, latents);
      return 0;
    });
  };
  EXPECT_EQ(fault(good), "no error");
  RunConfig config = good;
  config.model.in_channels = 4;
  EXPECT_THAT(fault(config), AllOf(HasSubstr("images of 3 channels, but model.in_channels is 4"),
                                   HasSubstr("kinora data encode")));
  EXPECT_THAT(
      fault(good, inference::LatentSize{.shape = {.channels = 4, .height = 16, .width = 16}}),
      HasSubstr("latents of 4 channels, but model.in_channels is 3"));
  config = good;
  config.model.height = 32;
  EXPECT_THAT(fault(config), HasSubstr("those of the data, 16 x 16, got 32 x 16"));
  config = good;
  config.data.frames = 4;
  EXPECT_THAT(fault(config), HasSubstr("model.frames must be those of the data, 4, got 1"));
  config = good;
  config.train.pooled_dropout = 0.3;
  EXPECT_THAT(fault(config), HasSubstr("train.pooled_dropout is for models that read a vector"));
  config = good;
  config.model =
      models::resolved({.architecture = "open_sora2",
                        .in_channels = 3,
                        .frames = 1,
                        .height = 16,
                        .width = 16,
                        .learn_sigma = false,
                        .time_scale = 1000.0,
                        .text_channels = 8,
                        .text_tokens = 5,
                        .pooled_channels = 6,
                        .transformer = {.depth = 1, .hidden = 32, .heads = 2, .patch = 2}});
  config.frame_masks.weights = {.t2v = 1, .i2v_head = 1};
  EXPECT_THAT(fault(config), HasSubstr("Hint: model.given_embedders=true"));
  config.frame_masks.weights = {};
  config.model.architecture = "flux";
  config.model.transformer.input = models::ShownInput::kFill;
  EXPECT_THAT(fault(config), HasSubstr("Hint: data.mask=drawn, or true"));
  config.data.source = data::SourceKind::kLatents;
  EXPECT_THAT(fault(config), HasSubstr("Hint: data.mask=true, and a cache"));
  EXPECT_THAT(fault(good, inference::LatentSize{.shape = {.channels = 3,
                                                          .height = 16,
                                                          .width = 16,
                                                          .pixel_height = 128,
                                                          .pixel_width = 128}}),
              HasSubstr("but model.compression is 1"));
}

TEST(SetupTest, TheCpuIsThereForEveryRank) {
  EXPECT_TRUE(inference::choose_device(DeviceChoice::kCpu).is_cpu());
  comm::World world;
  world.rank = 3;
  world.size = 4;
  world.local_rank = 3;
  EXPECT_TRUE(rank_device(world, DeviceChoice::kCpu).is_cpu());
}

TEST(SetupTest, PrecisionsAreTypesOfLibtorch) {
  EXPECT_EQ(inference::compute_type(Precision::kFp32), at::kFloat);
  EXPECT_EQ(inference::compute_type(Precision::kBf16), at::kBFloat16);
  EXPECT_EQ(inference::compute_type(Precision::kFp16), at::kHalf);
}

TEST(SetupTest, APathIsTakenWhereItCanBe) {
  RunConfig config = tiny();
  const auto model = models::make_model(config.model);
  EXPECT_EQ(set_path(*model, config, at::kCPU), nullptr) << "a CPU takes the plain path";
  config.path = inference::Path::kFast;
  EXPECT_NE(set_path(*model, config, at::kCPU), nullptr) << "unless it is told to";
  config.finetune.freeze = {"*"};
  EXPECT_NE(set_path(*model, config, at::kCPU), nullptr) << "whatever is frozen";
  config.finetune.lora = {.targets = {"*.qkv"}, .dora = true};
  EXPECT_THAT(refusal([&] { return set_path(*model, config, at::kCPU); }),
              HasSubstr("model.path is fast, but finetune.lora has DoRA, LoHa or LoKr"));
  config = tiny();
  config.train.fp8 = true;
  EXPECT_THAT(refusal([&] { return set_path(*model, config, at::kCPU); }),
              HasSubstr("train.fp8 needs the fast path"));
  config = tiny();
  config.train.recompute = "block:1,mlp";
  EXPECT_THAT(refusal([&] { return set_path(*model, config, at::kCPU); }),
              HasSubstr("train.recompute=block:1,mlp needs the fast path"));
  config.train.recompute = "offload:1";
  EXPECT_THAT(refusal([&] { return set_path(*model, config, at::kCPU); }),
              HasSubstr("train.recompute=offload:1 needs the fast path"));
  config.train.fp8_activations = true;
  config.train.recompute = "none";
  EXPECT_THAT(refusal([&] { return set_path(*model, config, at::kCPU); }),
              HasSubstr("train.fp8_activations needs the fast path"));
  config.path = inference::Path::kFast;
  EXPECT_NE(set_path(*model, config, at::kCPU), nullptr);
}

TEST(SetupTest, AUnetWithoutWidthsForFp8IsRefused) {
  RunConfig config = tiny();
  const auto fault = [&](std::vector<int64_t> channels) {
    models::ModelConfig model{.architecture = "unet",
                              .in_channels = 4,
                              .height = 8,
                              .width = 8,
                              .text_channels = 10,
                              .text_tokens = 4};
    model.learn_sigma = false;
    model.unet = {.channels = std::move(channels), .resnets = 1, .depths = {1}, .heads = {2}};
    model.unet.middle_depth = 1;
    model.unet.norm_groups = 4;
    config.model = models::resolved(model);
    config.path = inference::Path::kFast;
    config.train.fp8 = true;
    const auto unet = models::make_model(config.model);
    return refusal([&] { return set_path(*unet, config, at::kCPU); });
  };
  EXPECT_THAT(fault({24}), HasSubstr("train.fp8 has no linears to compute in UNet"));
  EXPECT_THAT(fault({32}), HasSubstr("train.fp8 needs a GPU of compute capability 8.9"));
}

TEST(SetupTest, TheCpusOptimizerIsOurs) {
  for (const ops::Switch wanted : {ops::Switch::kAuto, ops::Switch::kOn, ops::Switch::kOff}) {
    EXPECT_TRUE(own_optimizer(wanted, at::kCPU));
  }
}

TEST(SetupTest, NothingIsRecordedOnThePlainPath) {
  RunConfig config = tiny();
  EXPECT_FALSE(use_graphs(config, nullptr));
  config.kernels.graphs = ops::Switch::kOff;
  EXPECT_FALSE(use_graphs(config, nullptr));
  config.kernels.graphs = ops::Switch::kOn;
  EXPECT_THAT(refusal([&] { return use_graphs(config, nullptr); }),
              HasSubstr("kernels.graphs is on, but this run cannot be recorded"));
}

TEST(SetupTest, TheSummarySaysWhatRuns) {
  RunConfig config = tiny();
  EXPECT_THAT(kernel_summary(config, nullptr, 2, at::kCPU),
              AllOf(StartsWith("plain path: attention "),
                    HasSubstr("(Float, 64 tokens, head_dim 16), linears of libtorch, optimizer "
                              "own (CPU)")));
  config.path = inference::Path::kFast;
  const auto model = models::make_model(config.model);
  const auto kernels = set_path(*model, config, at::kCPU);
  EXPECT_THAT(
      kernel_summary(config, kernels.get(), 2, at::kCPU),
      AllOf(StartsWith("fast path: norms "), HasSubstr("no CUDA graphs, optimizer own (CPU)")));
}

TEST(SetupTest, TheSamplerMustFitTheObjective) {
  RunConfig config = tiny();
  const diffusion::Objective chain = diffusion::make_objective(config.objective, true);
  EXPECT_NO_THROW((void)sampler_of(config, chain));
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  const diffusion::Objective flow = diffusion::make_objective(config.objective, false);
  config.sample.sampling.method = pipelines::SamplingConfig::Method::kDdpm;
  EXPECT_NE(refusal([&] { return sampler_of(config, flow); }), "no error");
}

TEST(SetupTest, ASequenceIsDividedAsTheModelAttends) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny();
    const auto plan = [&] {
      return inference::sequence_plan(config.model, config.precision,
                                      {.scheme = config.parallel.sequence_scheme, .batch = 4},
                                      world, at::kCPU);
    };
    EXPECT_EQ(plan().ranks(), 2);
    const auto reason = [&] {
      return inference::sequence_plan(config.model, config.precision, {.batch = 4}, world, at::kCPU,
                                      /*deterministic=*/true)
          .reason;
    };
    EXPECT_EQ(reason(), reason()) << "times of links are in it";
    config.parallel.sequence_scheme = parallel::SequenceScheme::kUlysses;
    config.model.transformer.heads = 1;
    EXPECT_THAT(refusal(plan), HasSubstr("ulysses"));
    config.parallel.sequence_scheme = parallel::SequenceScheme::kAuto;
    config.model.architecture = "pixart";
    EXPECT_EQ(plan().ranks(), 2);
    config.model.transformer.kv_compress = models::KvSampling::kConv;
    EXPECT_THAT(refusal(plan), HasSubstr("keys and values are compressed (model.kv_compress)"));
    config.model.architecture = "hunyuan_video";
    config.model.transformer.kv_compress = models::KvSampling::kNone;
    config.model.transformer.clean_first_frame = true;
    EXPECT_THAT(refusal(plan), HasSubstr("modulated by itself (model.clean_first_frame)"));
  });
}

}  // namespace setup_test
}  // namespace kinora::train
