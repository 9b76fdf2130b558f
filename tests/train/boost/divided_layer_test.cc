// Layers of torch::nn::Modules that ranks divide, against the same module on one rank.
#include "kinora/train/boost/divided_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

#include "kinora/train/boost/booster.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace divided_layer_test {

using testing::HasSubstr;

constexpr int64_t kWidth = 16;
constexpr int64_t kHeads = 4;
constexpr int64_t kWords = 11;

/// A transformer of one block: its attention counts heads by what there is.
struct Transformer : torch::nn::Module {
  Transformer()
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        wide(register_module("wide", torch::nn::Linear(kWidth, 4 * kWidth))),
        narrow(register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = words(tokens);
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const at::Tensor parts =
        qkv(x).view({batch, length, 3, -1, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    x = norm(x + out(seen.transpose(1, 2).flatten(2)));
    x = x + narrow(wide(x).tanh());
    // One of two dims: what linears make of it is addmm.
    return head(x.flatten(0, 1));
  }

  torch::nn::Embedding words;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm;
  torch::nn::Linear wide, narrow, head;
};

at::Tensor loss_of(Transformer& model, int64_t index) {
  const at::Tensor tokens = (at::arange(4 * 6, at::kLong).view({4, 6}) * 5 + index) % kWords;
  return at::cross_entropy_loss(model.forward(tokens), ((tokens + 3) % kWords).flatten());
}

/// A residual network of one block.
struct Residual : torch::nn::Module {
  Residual()
      : stem(register_module("stem",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)))),
        first(register_module(
            "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1).bias(false)))),
        bn(register_module("bn", torch::nn::BatchNorm2d(8))),
        second(register_module("second",
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)))),
        head(register_module("head", torch::nn::Linear(8, 4))) {}

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = stem(images).tanh();
    x = x + second(bn(first(x)).tanh());
    return head(x.mean({2, 3}));
  }

  torch::nn::Conv2d stem, first;
  torch::nn::BatchNorm2d bn;
  torch::nn::Conv2d second;
  torch::nn::Linear head;
};

at::Tensor loss_of(Residual& model, int64_t index) {
  const at::Tensor images =
      (at::arange(4 * 3 * 6 * 6, at::kFloat).view({4, 3, 6, 6}) * 0.3 + static_cast<double>(index))
          .sin();
  return at::cross_entropy_loss(model.forward(images), at::arange(4, at::kLong));
}

/// Losses and norms of a few steps of two passes.
template <typename Model>
std::vector<optim::StepResult> train(Model& model, const BoosterOptions& options,
                                     const comm::Group& world) {
  const Booster booster(options, world);
  Boosted boosted = booster.boost(model, {.eps = 1e-3, .max_grad_norm = 0.5}, {.value = 1e-2});
  const int64_t passes = 4 / booster.data_ranks();
  boosted.accumulate(passes);
  std::vector<optim::StepResult> results;
  for (int64_t step = 0; step < 5; ++step) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      boosted.backward(
          loss_of(model, 4 * step + pass * booster.data_ranks() + booster.data_rank()));
    }
    results.push_back(boosted.step());
  }
  boosted.save_model(testing::TempDir() + "kinora-divided-" + std::to_string(world.size()) +
                     ".safetensors");
  return results;
}

BoosterOptions fp32() {
  return {.precision = Precision::kFp32, .device = DeviceChoice::kCpu};
}

const std::vector<LayerRule>& rules_of(const Transformer& /*model*/) {
  static const std::vector<LayerRule> rules = {{"qkv", LayerCut::kOutputs, 3},
                                               {"out", LayerCut::kInputs},
                                               {"wide", LayerCut::kOutputs},
                                               {"narrow", LayerCut::kInputs}};
  return rules;
}
const std::vector<LayerRule>& rules_of(const Residual& /*model*/) {
  static const std::vector<LayerRule> rules = {{"stem", LayerCut::kGathered},
                                               {"first", LayerCut::kGathered},
                                               {"second", LayerCut::kGathered},
                                               {"head", LayerCut::kGathered}};
  return rules;
}

template <typename Model>
void expect_the_losses_of_one_rank(int64_t num_ranks, int64_t tp_size, int64_t zero_stage) {
  SCOPED_TRACE("ZeRO-" + std::to_string(zero_stage));
  comm::run_on_ranks(num_ranks, [&](const comm::Group& world) {
    at::manual_seed(1);
    Model alone;
    const auto want = train(alone, fp32(), {});
    at::manual_seed(1 + static_cast<uint64_t>(world.rank()));  // rank 0's values count
    Model model;
    BoosterOptions options = fp32();
    options.plugin = "hybrid";
    options.plugin_config.tp_size = tp_size;
    options.plugin_config.zero_stage = zero_stage;
    options.tensor_rules = rules_of(model);
    const auto got = train(model, options, world);
    EXPECT_GT(std::abs(want.back().loss - want.front().loss), 1e-3) << "nothing has changed";
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-5 * want[i].loss) << "step " << i;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-4 * want[i].grad_norm) << "step " << i;
    }
    // The file has whole layers.
    Model read;
    Boosted boosted = Booster(fp32()).boost(read, {}, {.value = 1e-2});
    boosted.load_model(testing::TempDir() + "kinora-divided-" + std::to_string(world.size()) +
                       ".safetensors");
    const auto expected = alone.named_parameters();
    for (const auto& named : read.named_parameters()) {
      EXPECT_TRUE(at::allclose(named.value(), expected[named.key()], 1e-3, 1e-4)) << named.key();
    }
    world.barrier();
  });
}

TEST(DividedLayerTest, ATransformerLearnsAsOnOneRank) {
  expect_the_losses_of_one_rank<Transformer>(2, 2, 0);
  expect_the_losses_of_one_rank<Transformer>(4, 2, 3);
}

TEST(DividedLayerTest, AResidualNetworkLearnsAsOnOneRank) {
  expect_the_losses_of_one_rank<Residual>(2, 2, 0);
}

TEST(DividedLayerTest, RefusesWhatRanksCannotDivide) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const auto refusal = [&world](auto&& model, const std::vector<LayerRule>& rules) {
      BoosterOptions options = fp32();
      options.plugin_config.tp_size = 2;
      options.tensor_rules = rules;
      return error_of(ErrorKind::kConfig, [&] {
        (void)train(model, options, world);
        return 0;
      });
    };
    EXPECT_THAT(refusal(Transformer(), {{"head", LayerCut::kGathered}}),
                HasSubstr("does not divide the 11 outputs of layer head"));
    EXPECT_THAT(refusal(Transformer(), {{"words", LayerCut::kInputs}}),
                HasSubstr("aten::embedding reads the weight of words"));
    EXPECT_THAT(refusal(Transformer(), {{"w*", LayerCut::kInputs}, {"wide", LayerCut::kInputs}}),
                HasSubstr("layer wide is named by two of tensor_rules"));
    EXPECT_THAT(refusal(Transformer(), {{"blocks.*", LayerCut::kInputs}}),
                HasSubstr("tensor_rules"));
    struct Scaled : torch::nn::Module {
      Scaled() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
      torch::nn::Linear linear;
    } scaled;
    BoosterOptions options = fp32();
    options.plugin_config.tp_size = 2;
    options.tensor_rules = {{"linear", LayerCut::kGathered}};
    Boosted boosted = Booster(options, world).boost(scaled, {}, {.value = 1e-2});
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           return at::addmm(scaled.linear->bias, at::ones({2, 8}),
                                            scaled.linear->weight.t(), 1.0, 0.5);
                         }),
                HasSubstr("linear multiplies what it adds up by a factor"));
    Transformer frozen;
    frozen.wide->weight.set_requires_grad(false);
    EXPECT_THAT(refusal(frozen, {{"wide", LayerCut::kOutputs}}),
                HasSubstr("wide.weight is frozen"));
    world.barrier();
  });
}

}  // namespace divided_layer_test
}  // namespace kinora::train
