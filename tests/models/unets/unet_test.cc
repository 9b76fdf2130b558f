#include "kinora/models/unets/unet.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/nn/weight_layer.h"
#include "kinora/ops/block_kernels.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/models/unets/unet_fixture.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace unet_test {

using testing::HasSubstr;
using testing::StartsWith;

class UnetTest : public testing::TestWithParam<const char*> {};

TEST_P(UnetTest, ForwardAndGradientsAreThoseOfDiffusers) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  set_formula_weights(model);
  at::Tensor x_t = fixture.find("forward.x_t").set_requires_grad(true);
  diffusion::Conditions conditions = fixture.conditions();
  if (conditions.text.defined()) {
    conditions.text.set_requires_grad(true);
  }
  if (conditions.pooled.defined()) {
    conditions.pooled.set_requires_grad(true);
  }
  const at::Tensor output = model.forward(x_t, fixture.find("forward.t"), conditions);
  EXPECT_LT(ops::relative_error(output.detach(), fixture.find("forward.output")),
            tolerance::kOtherOrder);

  torch::autograd::backward({(output * formula_values("output", output.sizes())).sum()}, {});
  EXPECT_LT(ops::relative_error(x_t.grad(), fixture.find("grad.x_t")), tolerance::kWholeModel);
  if (conditions.text.defined()) {
    EXPECT_LT(ops::relative_error(conditions.text.grad(), fixture.find("grad.text")),
              tolerance::kWholeModel);
  }
  if (conditions.pooled.defined()) {
    EXPECT_LT(ops::relative_error(conditions.pooled.grad(), fixture.find("grad.pooled")),
              tolerance::kWholeModel);
  }
  for (const auto& [path, parameter] : model.named_parameters()) {
    const at::Tensor want = fixture.find("grad." + path);
    ASSERT_TRUE(want.defined()) << path;
    const at::Tensor gap = (probe(path, parameter->grad) - want.to(at::kDouble)).abs();
    // Of one token queries and keys have no gradient but rounding, of zeros values neither.
    const double norm = want[0].item<double>();
    const double most = norm > 1e-9 ? tolerance::kWholeModel * norm : 1e-6;
    EXPECT_LT(gap.max().item<double>(), most) << path;
  }
}

std::shared_ptr<ops::BlockKernels> composed_kernels() {
  return std::make_shared<ops::BlockKernels>(ops::KernelOptions(), at::kCPU, at::kFloat, false);
}

/// The output, and the gradients of what is trained; level: nothing: of the plain path.
std::map<std::string, at::Tensor> results_of(Unet& model, const UnetFixture& fixture,
                                             std::optional<ops::Recompute> level) {
  model.use_fast_path(level ? composed_kernels() : nullptr, level.value_or(ops::Recompute::kNone));
  set_packed_weights(model);
  const at::Tensor output =
      model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), fixture.conditions());
  torch::autograd::backward({(output * formula_values("output", output.sizes())).sum()}, {});
  std::map<std::string, at::Tensor> all = {{"output", output.detach()}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (!parameter->frozen) {
      all[path] = parameter->grad;
    }
  }
  return all;
}

// Composed of ATen's calls the fast path is the same but for the order of sums.
TEST_P(UnetTest, TheFastPathComputesTheSame) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  const auto run = [&](std::optional<ops::Recompute> level) {
    return results_of(model, fixture, level);
  };
  const auto want = run(std::nullopt);
  const auto got = run(ops::Recompute::kNone);
  for (const auto& [name, values] : want) {
    if (values.norm().item<double>() > 1e-6) {
      EXPECT_LT(ops::relative_error(got.at(name), values), tolerance::kOtherOrderOfBranches)
          << name;
    } else {
      EXPECT_LT(got.at(name).norm().item<double>(), 1e-6) << name;
    }
  }
  for (const auto level :
       {ops::Recompute::kElementwise, ops::Recompute::kMlp, ops::Recompute::kBlock}) {
    for (const auto& [name, values] : run(level)) {
      EXPECT_TRUE(at::equal(values, got.at(name))) << name << ", " << static_cast<int>(level);
    }
  }
}

bool attends_to_places(const Unet& model) {
  return model.config().unet.attends == UnetAttends::kPlaces;
}

/// As drawing has them: labels are there even where nobody reads them.
diffusion::Conditions with_labels(const UnetFixture& fixture) {
  diffusion::Conditions conditions = fixture.conditions();
  if (!conditions.labels.defined()) {
    conditions.labels = at::zeros({2}, at::kLong);
  }
  return conditions;
}

/// Updates of all linears of the transformers' blocks, and of attention to places, of three ranks
/// and scales.
void adapt_blocks(nn::Module& model) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->frozen = true;
  }
  int64_t number = 0;
  for (const nn::NamedWeightLayer& named : model.named_weight_layers()) {
    if (named.path.find("transformer_blocks") != std::string::npos ||
        named.path.ends_with(".qkv")) {
      const int64_t kind = number++ % 3;
      named.layer->adapt({.rank = 2 + kind, .scale = 0.1 + 0.1 * static_cast<double>(kind)});
    }
  }
}

// The updates of queries, keys and values, which are one product, are those of its parts.
TEST_P(UnetTest, UpdatesOnTheFastPathComputeTheSame) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  adapt_blocks(model);
  const auto run = [&](std::optional<ops::Recompute> level) {
    return results_of(model, fixture, level);
  };
  const auto want = run(std::nullopt);
  constexpr double kRounding = 1e-6;
  for (const auto level : {ops::Recompute::kNone, ops::Recompute::kElementwise,
                           ops::Recompute::kMlp, ops::Recompute::kBlock}) {
    for (const auto& [name, values] : run(level)) {
      // Of one token queries and keys have no gradient but rounding.
      if (want.at(name).abs().max().item<double>() < kRounding) {
        EXPECT_LT(values.abs().max().item<double>(), kRounding) << name;
        EXPECT_TRUE(fixture.conditions().labels.defined()) << name;
        continue;
      }
      EXPECT_LT(ops::relative_error(values, want.at(name)), tolerance::kOtherOrder)
          << name << ", " << static_cast<int>(level);
    }
  }
  const at::NoGradGuard no_grad;  // only stacks prepare texts
  const diffusion::Conditions conditions = with_labels(fixture);
  EXPECT_EQ(model.prepare(fixture.find("forward.t").narrow(0, 0, 1), conditions).of_texts.empty(),
            attends_to_places(model));
}

// Where a pass may overwrite, nothing is left of what gradients held, but for islands, which others
// zero; the next pass adds.
TEST_P(UnetTest, GradientsAreOverwrittenAndThenAddedTo) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  model.use_fast_path(composed_kernels());
  model.overwrite_gradients();
  const auto add_gradients = [&](const diffusion::Pass& pass) {
    const at::Tensor output = model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"),
                                            fixture.conditions(), pass);
    torch::autograd::backward({output.square().sum()}, {});
  };
  for (const int64_t recomputed : {int64_t{0}, model.config().unet.units()}) {
    model.set_recompute(recomputed);
    set_packed_weights(model);
    add_gradients({});
    std::map<std::string, at::Tensor> want;
    for (const auto& [path, parameter] : model.named_parameters()) {
      want[path] = parameter->grad.clone();
      parameter->grad.fill_(parameter->fp32_island ? 0.0 : 1e30);
    }
    add_gradients({.starts_step = true, .overwrite = true});
    for (const auto& [path, parameter] : model.named_parameters()) {
      EXPECT_TRUE(at::equal(parameter->grad, want.at(path))) << path << ", " << recomputed;
    }
    add_gradients({});
    for (const auto& [path, parameter] : model.named_parameters()) {
      const at::Tensor twice = 2 * want.at(path);
      EXPECT_LE((parameter->grad - twice).norm().item<double>(),
                tolerance::kOtherOrder * std::max(twice.norm().item<double>(), 1e-6))
          << path << ", " << recomputed;
    }
  }
}

// What drawing makes of times and texts before its steps stands in for them.
TEST_P(UnetTest, WhatIsPreparedComputesTheSame) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  set_packed_weights(model);
  const at::NoGradGuard no_grad;
  const diffusion::Conditions conditions = with_labels(fixture);
  const at::Tensor times = at::arange(2).to(at::kFloat) * 300.0 + 7.0;
  EXPECT_FALSE(model.prepare(times, conditions).any()) << "the plain path has no use for it";

  model.use_fast_path(composed_kernels());
  const diffusion::Prepared prepared = model.prepare(times, conditions);
  EXPECT_TRUE(prepared.of_times.defined());
  EXPECT_EQ(prepared.of_texts.empty(), attends_to_places(model));
  diffusion::Conditions unread = conditions;  // states are not read again, lengths are
  if (unread.text.defined()) {
    unread.text = at::full_like(unread.text, std::numeric_limits<float>::quiet_NaN());
  }
  const at::Tensor x_t = fixture.find("forward.x_t");
  for (int64_t s = 0; s < 2; ++s) {
    const at::Tensor t = times.narrow(0, s, 1).expand({x_t.size(0)}).contiguous();
    const at::Tensor want = model.forward(x_t, t, conditions);
    const at::Tensor got = model.forward(x_t, t, unread, {.prepared = prepared.at_time(s)});
    EXPECT_LT(ops::relative_error(got, want), tolerance::kOtherOrder) << s;
  }
}

TEST(UnetPrepareTest, NothingLargerThanTheLimitIsPrepared) {
  const UnetFixture fixture("unet_sd1");
  Unet model(fixture.config());
  set_packed_weights(model);
  model.use_fast_path(composed_kernels());
  const at::NoGradGuard no_grad;
  const at::Tensor many =
      at::zeros({diffusion::Prepared::kMaxBytes / (2 * 4 * fixture.config().unet.channels[0])});
  const diffusion::Prepared prepared = model.prepare(many, fixture.conditions());
  EXPECT_FALSE(prepared.of_times.defined());
  EXPECT_FALSE(prepared.of_texts.empty());
}

TEST_P(UnetTest, EveryRecomputationGivesTheSameBits) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  const auto gradients = [&](int64_t blocks) {
    model.set_recompute(blocks);
    set_formula_weights(model);
    const at::Tensor output =
        model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), fixture.conditions());
    torch::autograd::backward({output.square().sum()}, {});
    std::map<std::string, at::Tensor> all;
    for (const auto& [path, parameter] : model.named_parameters()) {
      all[path] = parameter->grad;
    }
    return all;
  };
  const auto want = gradients(0);
  for (const int64_t blocks : {int64_t{1}, model.config().unet.units()}) {
    for (const auto& [path, gradient] : gradients(blocks)) {
      EXPECT_TRUE(at::equal(gradient, want.at(path))) << path << ", " << blocks;
    }
  }
}

TEST_P(UnetTest, BucketsHoldEveryParameterOnce) {
  Unet model(UnetFixture(GetParam()).config());
  std::vector<std::string> in_buckets;
  int64_t blocks = 0;
  for (const nn::BucketSpec& bucket : model.buckets()) {
    EXPECT_FALSE(bucket.parameters.empty()) << bucket.name;
    in_buckets.insert(in_buckets.end(), bucket.parameters.begin(), bucket.parameters.end());
    blocks += bucket.is_block ? 1 : 0;
  }
  EXPECT_EQ(blocks, shape_of(model.config()).blocks);
  std::vector<std::string> all;
  for (const auto& [path, parameter] : model.named_parameters()) {
    all.push_back(path);
  }
  EXPECT_THAT(in_buckets, testing::UnorderedElementsAreArray(all));
}

INSTANTIATE_TEST_SUITE_P(Models, UnetTest,
                         testing::Values("unet_sd1", "unet_sd2", "unet_deep", "unet_sdxl",
                                         "unet_refiner", "unet_class_token", "unet_class_time",
                                         "unet_places", "unet_pixels", "unet_places_class",
                                         "unet_places_scaled"),
                         [](const auto& info) { return std::string(info.param); });

// Where a caption is null the buffer stands for it, zeros at first, and all of it is read.
TEST(UnetTextTest, NullCaptionsReadTheBuffer) {
  const UnetFixture fixture("unet_sd1");
  Unet model(fixture.config());
  set_formula_weights(model);
  const at::NoGradGuard no_grad;
  const auto run = [&](const diffusion::Conditions& conditions) {
    return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
  };
  diffusion::Conditions zeros = fixture.conditions();
  zeros.text = at::stack({at::zeros_like(zeros.text[0]), zeros.text[1]});
  diffusion::Conditions null = fixture.conditions();
  null.null_text = at::arange(2) == 0;
  EXPECT_TRUE(at::equal(run(null), run(zeros)));
  EXPECT_FALSE(at::equal(run(null), run(fixture.conditions())));

  const at::Tensor empty = 0.5 * formula_values("empty", model.null_caption().sizes());
  model.null_caption().copy_(empty);
  diffusion::Conditions of_empty = fixture.conditions();
  of_empty.text = at::stack({empty, of_empty.text[1]});
  EXPECT_TRUE(at::equal(run(null), run(of_empty)));
  EXPECT_FALSE(at::equal(run(null), run(zeros)));
  const auto lengths = [](int64_t first, int64_t second) {
    return at::arange(2) * (second - first) + first;
  };
  null.text_lengths = lengths(2, 3);
  of_empty.text_lengths = lengths(5, 3);
  EXPECT_TRUE(at::equal(run(null), run(of_empty)));
  // Of captions with room for fewer tokens as many of it.
  null.text = null.text.narrow(1, 0, 4);
  of_empty.text = of_empty.text.narrow(1, 0, 4);
  of_empty.text_lengths = lengths(4, 3);
  EXPECT_TRUE(at::equal(run(null), run(of_empty)));
}

// As SDXL was trained: a null caption's states and vector are zeros.
TEST(UnetTextTest, NullCaptionsOfPooledVectorsAreZeros) {
  const UnetFixture fixture("unet_sdxl");
  Unet model(fixture.config());
  set_formula_weights(model);
  EXPECT_FALSE(model.null_caption().defined());
  const at::NoGradGuard no_grad;
  const auto run = [&](const diffusion::Conditions& conditions) {
    return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
  };
  diffusion::Conditions zeros = fixture.conditions();
  zeros.text = at::stack({at::zeros_like(zeros.text[0]), zeros.text[1]});
  diffusion::Conditions null = fixture.conditions();
  null.null_text = at::arange(2) == 0;
  EXPECT_FALSE(at::equal(run(null), run(zeros)));
  zeros.pooled = at::stack({at::zeros_like(zeros.pooled[0]), zeros.pooled[1]});
  EXPECT_TRUE(at::equal(run(null), run(zeros)));
}

/// The published sizes at 512 pixels.
ModelConfig published(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.num_classes = 1000;
  config.in_channels = 4;
  config.height = 64;
  config.width = 64;
  config.learn_sigma = false;
  return resolved(config);
}

// As many parameters as the published files have.
TEST(UnetSizesTest, HaveAsManyParametersAsPublished) {
  const std::map<std::string, int64_t> known = {{"UNet-SD1", 859520964},
                                                {"UNet-SD2", 865910724},
                                                {"UNet-SDXL", 2567463684},
                                                {"UNet-SDXL-Refiner", 2259526660},
                                                // cin256-v2 with its table of 1001 vectors.
                                                {"ClassUNet-ImageNet", 401436548},
                                                // diffusers' UNet2DModel of 4 channels.
                                                {"ClassUNet-CelebAHQ", 274060196}};
  for (const auto& [name, number] : known) {
    Unet model(published(name));
    int64_t sum = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      sum += parameter->numel();
    }
    EXPECT_EQ(sum, number) << name;
  }
  // With a ControlNet of diffusers' ControlNetModel, 361,279,120 of these.
  ModelConfig controlled = published("UNet-SD1");
  controlled.unet.controls = 1;
  Unet model(controlled);
  int64_t sum = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    sum += parameter->numel();
  }
  EXPECT_EQ(sum, known.at("UNet-SD1") + 361279120);
}

// The class' vector is the context of attention, or a part of the time; the last is the null class.
TEST(UnetClassesTest, LabelsMustBeThereAndClassesToldInOneWay) {
  const UnetFixture fixture("unet_class_token");
  Unet model(fixture.config());
  set_formula_weights(model);
  EXPECT_FALSE(model.null_caption().defined());
  EXPECT_TRUE(model.named_buffers().empty());
  diffusion::Conditions conditions = fixture.conditions();
  const auto refusal = [&](const at::Tensor& labels) {
    conditions.labels = labels;
    return error_of(ErrorKind::kShape, [&] {
      return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions)
          .dim();
    });
  };
  EXPECT_THAT(refusal({}), HasSubstr("needs labels, int64 [2], got []"));
  EXPECT_THAT(refusal(at::zeros({3}, at::kLong)), HasSubstr("needs labels, int64 [2], got [3]"));
  const auto wrong = [](const std::string& name, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = published(name);
    change(config);
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  EXPECT_THAT(
      wrong("UNet-SD1", [](ModelConfig& config) { config.unet.classes = UnetClasses::kToken; }),
      HasSubstr("model.unet.classes must be none for UNet-SD1, got token"));
  EXPECT_THAT(wrong("ClassUNet-ImageNet", [](ModelConfig& config) { config.unet.controls = 1; }),
              HasSubstr("ControlNets (model.unet.controls) are there for U-Nets that are told"));
  const auto wrong_places = [&](const std::function<void(ModelConfig&)>& change) {
    return wrong("ClassUNet-CelebAHQ", change);
  };
  EXPECT_THAT(wrong_places([](ModelConfig& config) { config.unet.classes = UnetClasses::kToken; }),
              HasSubstr("model.unet.classes must be none or time with model.unet.attends=places"));
  EXPECT_THAT(wrong_places([](ModelConfig& config) { config.text_channels = 8; }),
              HasSubstr("model.text_channels must be 0 with model.unet.attends=places, got 8"));
  EXPECT_THAT(wrong_places([](ModelConfig& config) { config.unet.middle_depth = 2; }),
              HasSubstr("depths and middle_depth must be 0 or 1"));
  EXPECT_THAT(wrong_places([](ModelConfig& config) { config.unet.controls = 1; }),
              HasSubstr("ControlNets (model.unet.controls) are there for U-Nets that are told"));
  EXPECT_THAT(
      wrong("UNet-SD1", [](ModelConfig& config) { config.unet.attends = UnetAttends::kPlaces; }),
      HasSubstr("model.unet.attends must be captions for UNet-SD1, got places"));
}

// Who is told nothing draws one kind of sample, whatever classes its data have.
TEST(UnetClassesTest, AnUnconditionalOneHasOneClassAndReadsNoLabels) {
  EXPECT_EQ(published("ClassUNet-CelebAHQ").num_classes, 1);
  const UnetFixture fixture("unet_places");
  Unet model(fixture.config());
  set_formula_weights(model);
  EXPECT_FALSE(model.null_caption().defined());
  const at::NoGradGuard no_grad;
  const auto run = [&](const diffusion::Conditions& conditions) {
    return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
  };
  diffusion::Conditions others;
  others.labels = at::arange(2) + 7;
  EXPECT_TRUE(at::equal(run({}), run(others)));
}

// Of each block of a transformer those that are one product are one.
TEST(UnetFp8Test, CountsTheProductsOfTheTransformersBlocks) {
  EXPECT_EQ(Unet(published("UNet-SD1")).num_fast_linears(), 7 * 16);
  EXPECT_EQ(Unet(published("UNet-SDXL")).num_fast_linears(), 7 * 70);
  ModelConfig controlled = published("UNet-SD1");
  controlled.unet.controls = 1;
  EXPECT_EQ(Unet(controlled).num_fast_linears(), 7 * (16 + 7));
  Unet adapted(published("UNet-SD1"));
  for (const nn::NamedWeightLayer& named : adapted.named_weight_layers()) {
    if (named.path.ends_with("attn2.to_v") || named.path.ends_with("ff.net.2")) {
      named.layer->adapt({});
    }
  }
  EXPECT_EQ(adapted.num_fast_linears(), 7 * 16) << "frozen weights below updates, too";
}

TEST(UnetFp8Test, WhatStaysIn16BitsIsNamed) {
  const UnetFixture fixture("unet_sd1");
  Unet model(fixture.config());
  model.use_fast_path(composed_kernels());
  set_packed_weights(model);
  const std::string stays = model.what_stays_16_bit();
  EXPECT_THAT(stays, StartsWith("convolutions, and linears outside of the transformers' blocks; "
                                "down_blocks.0.0.transformer_blocks.0.attn2.to_k, to_v: 10 -> 32, "
                                "no multiples of 16; down_blocks.0.1."));
  EXPECT_THAT(stays, HasSubstr("; and 7 more"));
}

// Blocks of transformers have 45 % of UNet-SD1's multiply-accumulates at 512 pixels.
TEST(UnetFp8Test, ItsShareIsThatOfTheBlocks) {
  const double share = fp8_share(published("UNet-SD1"));
  EXPECT_GT(share, 0.3);
  EXPECT_LT(share, 0.6);
  ModelConfig none = published("UNet-SD1");
  none.unet.depths = {0, 0, 0, 0};
  none.unet.middle_depth = 0;
  EXPECT_EQ(fp8_share(none), 0.0);
  EXPECT_GT(fp8_share(published("UNet-SDXL")), share);
  const double of_classes = fp8_share(published("ClassUNet-ImageNet"));
  EXPECT_GT(of_classes, 0.1);
  EXPECT_LT(of_classes, 0.6);
}

TEST(UnetSizesTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = published("UNet-SD1");
    change(config);
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  EXPECT_THAT(refusal([](ModelConfig& config) { config.unet.depths.pop_back(); }),
              HasSubstr("an entry for each of 4 levels of channels, got 3 and 4"));
  EXPECT_THAT(refusal([](ModelConfig& config) {
                config.unet.heads = {8, 8, 8, 7};
              }),
              HasSubstr("heads must divide the channels of their level, got 7 for 1280"));
  EXPECT_THAT(refusal([](ModelConfig& config) { config.unet.norm_groups = 48; }),
              HasSubstr("multiples of norm_groups = 48, got 320"));
  EXPECT_THAT(refusal([](ModelConfig& config) {
                config.unet.norm_groups = 1;
                config.unet.channels.front() = 2;
                config.unet.heads.front() = 1;
                config.unet.time_shift = 1;
              }),
              HasSubstr("must begin with 4 or more where model.unet.time_shift is 1, got 2"));
  EXPECT_THAT(refusal([](ModelConfig& config) { config.height = 4; }),
              HasSubstr("at least 8 for 4 levels, got 4 x 64"));
  EXPECT_THAT(refusal([](ModelConfig& config) { config.transformer.depth = 12; }),
              HasSubstr("UNet has no use for keys of transformers"));
  EXPECT_THAT(
      refusal([](ModelConfig& config) { config.pooled_channels = 8; }),
      HasSubstr("size_channels must be even and above 0 with model.pooled_channels, got 0"));
  EXPECT_THAT(refusal([](ModelConfig& config) { config.unet.size_channels = 8; }),
              HasSubstr("must be 0, and reads_score false, without model.pooled_channels, got 8"));
  EXPECT_THAT(refusal([](ModelConfig& config) {
                config.name = "custom";
                config.unet = {};
              }),
              HasSubstr("Hint: set them, or a model.name such as UNet-SD1"));
}

TEST(UnetSizesTest, InputsThatDoNotFitAreRefused) {
  const UnetFixture fixture("unet_sd1");
  Unet model(fixture.config());
  set_formula_weights(model);
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  diffusion::Conditions conditions = fixture.conditions();
  const auto refusal = [&](const at::Tensor& x, const at::Tensor& time) {
    return error_of(ErrorKind::kShape, [&] { return model.forward(x, time, conditions).dim(); });
  };
  EXPECT_THAT(refusal(x_t.narrow(1, 0, 3), t), HasSubstr("x_t must be [B, 4, H, W], got [2, 3"));
  EXPECT_THAT(refusal(x_t, t.to(at::kDouble)), HasSubstr("t must be float32 [2]"));
  conditions.text = conditions.text.narrow(2, 0, 9);
  EXPECT_THAT(refusal(x_t, t), HasSubstr("needs text, [2, up to 5, 10], got [2, 5, 9]"));
  conditions.text = at::Tensor();
  EXPECT_THAT(refusal(x_t, t), HasSubstr("needs text, [2, up to 5, 10], got []"));
}

}  // namespace unet_test
}  // namespace kinora::models
