// torch::nn::Modules whose children ranks divide into stages, against the same module on one rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <filesystem>

#include "kinora/train/boost/booster.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::train {
namespace stages_test {

using testing::HasSubstr;

constexpr int64_t kWidth = 16;
constexpr int64_t kWords = 11;

struct Block : torch::nn::Module {
  explicit Block(int64_t inner)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        wide(register_module("wide", torch::nn::Linear(kWidth, inner))),
        narrow(register_module("narrow", torch::nn::Linear(inner, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) { return x + narrow(wide(norm(x)).tanh()); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear wide, narrow;
};

/// A list of blocks between words and words: the weight that embeds them tells them, too.
struct Words : torch::nn::Module {
  static constexpr const char* kStages = "blocks";
  inline static const std::vector<LayerRule> kRules = {{"blocks.*.wide", LayerCut::kOutputs},
                                                       {"blocks.*.narrow", LayerCut::kInputs}};

  Words()
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        blocks(register_module(
            "blocks", torch::nn::Sequential(Block(16), Block(32), Block(24), Block(16)))) {}

  /// Texts of two lengths.
  static at::Tensor text(int64_t index) {
    return (at::arange(4 * 6, at::kLong).view({4, 6}) * 5 + index).narrow(1, 0, 5 + index % 2) %
           kWords;
  }
  at::Tensor input(int64_t index) { return words(text(index)); }
  at::Tensor loss(const at::Tensor& x, int64_t index) {
    const at::Tensor logits = at::linear(x, words->weight).flatten(0, 1).to(at::kFloat);
    return at::cross_entropy_loss(logits, ((text(index) + 3) % kWords).flatten());
  }
  at::Tensor chain(const at::Tensor& x) { return blocks->forward(x); }

  torch::nn::Embedding words;
  torch::nn::Sequential blocks;
};

/// The same, of which the first two blocks, and what they read, are not trained.
struct FrozenStart : Words {
  FrozenStart() {
    for (const size_t child : {0, 1}) {
      for (const at::Tensor& parameter : blocks->ptr(child)->parameters()) {
        at::Tensor(parameter).set_requires_grad(false);
      }
    }
  }
  at::Tensor input(int64_t index) { return Words::input(index).detach(); }
};

/// A list that is the module, with a linear that comes twice, a frozen one, and a norm with
/// buffers.
struct Layers : torch::nn::SequentialImpl {
  static constexpr const char* kStages = "";
  inline static const std::vector<LayerRule> kRules = {};

  Layers() {
    const torch::nn::Linear twice(kWidth, kWidth);
    const torch::nn::Linear frozen(kWidth, kWidth);
    frozen->weight.set_requires_grad(false);
    push_back(torch::nn::Linear(6, kWidth));
    push_back(torch::nn::Tanh());
    push_back(twice);
    push_back("norm", torch::nn::BatchNorm1d(kWidth));
    push_back("frozen", frozen);
    push_back(torch::nn::Tanh());
    push_back("again", twice);
    push_back(torch::nn::BatchNorm1d(kWidth));
    push_back(torch::nn::Linear(kWidth, 4));
  }

  static at::Tensor numbers(int64_t index) {
    return (at::arange(8 * 6, at::kFloat).view({8, 6}) * 0.7 + static_cast<double>(index)).sin();
  }
  at::Tensor input(int64_t index) { return numbers(index).to(parameters().back().scalar_type()); }
  at::Tensor loss(const at::Tensor& x, int64_t index) {
    return at::mse_loss(x.to(at::kFloat), numbers(index).narrow(1, 0, 4).square());
  }
  at::Tensor chain(const at::Tensor& x) { return forward(x); }
};

constexpr int64_t kSteps = 4;

BoosterOptions fp32() {
  return {.precision = Precision::kFp32, .grad_clip = 0.5, .device = DeviceChoice::kCpu};
}

template <typename Model>
BoosterOptions staged(int64_t pp_size) {
  BoosterOptions options = fp32();
  options.plugin = "hybrid";
  options.plugin_config.pp_size = pp_size;
  options.stages = Model::kStages;
  return options;
}

Boosted boost(torch::nn::Module& model, const BoosterOptions& options,
              const comm::Group& world = {}) {
  return Booster(options, world).boost(model, {.eps = 1e-3, .weight_decay = 0.1}, {.value = 1e-2});
}

/// Steps of `samples` micro-batches on one rank, by the module's own forward.
template <typename Model>
std::vector<optim::StepResult> train_alone(Model& model, Boosted& boosted, int64_t samples) {
  boosted.accumulate(samples);
  std::vector<optim::StepResult> results;
  for (int64_t i = 0; i < kSteps; ++i) {
    const int64_t first = samples * boosted.steps();
    for (int64_t pass = 0; pass < samples; ++pass) {
      boosted.backward(model.loss(model.chain(model.input(first + pass)), first + pass));
    }
    results.push_back(boosted.step());
  }
  return results;
}

/// The same by stages; data rank `rank` of `ranks` takes every so many.
template <typename Model>
std::vector<optim::StepResult> train(Model& model, Boosted& boosted, int64_t samples,
                                     int64_t ranks = 1, int64_t rank = 0) {
  boosted.accumulate(samples / ranks);
  std::vector<optim::StepResult> results;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto index = [&](int64_t pass) {
      return samples * boosted.steps() + pass * ranks + rank;
    };
    boosted.execute_pipeline(
        [&](int64_t pass) { return model.input(index(pass)); },
        [&](const at::Tensor& x, int64_t pass) { return model.loss(x, index(pass)); });
    results.push_back(boosted.step());
  }
  return results;
}

void expect_same(const std::vector<optim::StepResult>& got,
                 const std::vector<optim::StepResult>& want, double tolerance = 1e-5) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_GT(std::abs(want.back().loss - want.front().loss), 1e-3) << "nothing has changed";
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].loss, want[i].loss, tolerance * want[i].loss) << "step " << i;
    EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, tolerance * want[i].grad_norm) << "step " << i;
    EXPECT_EQ(got[i].skipped, want[i].skipped) << "step " << i;
  }
}

void expect_same(const torch::nn::Module& got, const torch::nn::Module& want, bool buffers) {
  const auto parameters = want.named_parameters();
  for (const auto& named : got.named_parameters()) {
    EXPECT_TRUE(at::allclose(named.value(), parameters[named.key()], 1e-5, 1e-5)) << named.key();
  }
  const auto expected = want.named_buffers();
  for (const auto& named : got.named_buffers()) {
    EXPECT_TRUE(!buffers || at::allclose(named.value(), expected[named.key()], 1e-5, 1e-6))
        << named.key();
  }
}

/// Of this test alone; empty at first.
std::filesystem::path folder() {
  return std::filesystem::path(testing::TempDir()) /
         (std::string("kinora-stages-") +
          testing::UnitTest::GetInstance()->current_test_info()->name());
}

/// How ranks divide what.
struct Division {
  int64_t pp_size = 2;
  int64_t zero_stage = 0;
  int64_t samples = 4;
  int64_t chunks = 1;
  int64_t tp_size = 1;
};

template <typename Model>
void expect_the_losses_of_one_rank(const comm::Group& world, const Division& division) {
  SCOPED_TRACE("pp_size " + std::to_string(division.pp_size) + ", samples " +
               std::to_string(division.samples));
  const std::string path = folder().string() + ".safetensors";
  at::manual_seed(1);
  Model alone;
  Boosted one = boost(alone, fp32());
  const auto want = train_alone(alone, one, division.samples);
  at::manual_seed(1 + static_cast<uint64_t>(world.rank()));  // rank 0's values count
  Model model;
  BoosterOptions options = staged<Model>(division.pp_size);
  options.plugin_config.zero_stage = division.zero_stage;
  options.plugin_config.pp_chunks = division.chunks;
  options.plugin_config.tp_size = division.tp_size;
  options.tensor_rules = Model::kRules;
  const Booster booster(options, world);
  Boosted boosted = boost(model, options, world);
  expect_same(train(model, boosted, division.samples, booster.data_ranks(), booster.data_rank()),
              want);
  boosted.save_model(path);
  Model read;
  Boosted reader = boost(read, fp32());
  reader.load_model(path);
  expect_same(read, alone, booster.data_ranks() == 1);
  world.barrier();
  std::error_code ignored;  // every rank comes here
  std::filesystem::remove(path, ignored);
}

TEST(StagesTest, BlocksBetweenTiedWordsLearnAsOnOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const int64_t samples : {1, 4, 5}) {
      expect_the_losses_of_one_rank<Words>(world, {.samples = samples});
    }
    expect_the_losses_of_one_rank<Words>(world, {.chunks = 2});
  });
}

TEST(StagesTest, AStageThatIsFrozenGetsNoGradients) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    expect_the_losses_of_one_rank<FrozenStart>(world, {.samples = 3});
  });
}

TEST(StagesTest, FourStages) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    expect_the_losses_of_one_rank<Words>(world, {.pp_size = 4, .samples = 6});
    expect_the_losses_of_one_rank<Layers>(world, {.pp_size = 4, .samples = 3});
  });
}

TEST(StagesTest, WithRanksOfOtherSamples) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    for (const int64_t zero_stage : {0, 1}) {
      expect_the_losses_of_one_rank<Words>(world, {.zero_stage = zero_stage, .samples = 6});
    }
    expect_the_losses_of_one_rank<Layers>(world, {.zero_stage = 1, .samples = 4});
  });
}

TEST(StagesTest, WithLayersThatRanksDivide) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    expect_the_losses_of_one_rank<Words>(world, {.samples = 3, .tp_size = 2});
  });
}

TEST(StagesTest, LayersWithBuffersAndTiedAndFrozenWeightsLearnAsOnOneRank) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    expect_the_losses_of_one_rank<Layers>(world, {.zero_stage = 1, .samples = 3});
  });
}

TEST(StagesTest, OneRankHasAllOfThem) {
  comm::run_on_ranks(1, [](const comm::Group& world) {
    expect_the_losses_of_one_rank<Words>(world, {.pp_size = 1, .samples = 3});
  });
}

TEST(StagesTest, HaveNoMemoryElsewhere) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const bool is_first = world.rank() == 0;
    Words words;
    Boosted boosted = boost(words, staged<Words>(2), world);
    // 2 blocks of 48, and 2 of 40 times the width: 16 and 32, 24 and 16.
    const std::vector<bool> is_here = {is_first, is_first, !is_first, !is_first};
    for (size_t i = 0; i < is_here.size(); ++i) {
      const at::Tensor& weight = words.blocks->at<Block>(i).wide->weight;
      EXPECT_EQ(weight.numel() > 0, is_here[i]) << i;
      EXPECT_EQ(weight.storage().nbytes() > 0, is_here[i]) << i;
    }
    EXPECT_EQ(words.words->weight.numel(), kWords * kWidth);
    for (const optim::Bucket& bucket : boosted.arena().buckets()) {
      for (const optim::Slot& slot : bucket.slots) {
        EXPECT_TRUE(slot.path == "words.weight" ||
                    is_here[static_cast<size_t>(slot.path.at(std::string("blocks.").size()) - '0')])
            << slot.path;
      }
    }
    Layers layers;
    Boosted other = boost(layers, staged<Layers>(2), world);
    int64_t kept = 0;
    for (const auto& named : layers.named_parameters()) {
      kept += named.key().starts_with("frozen.") ? named.value().numel() : 0;
    }
    const at::Tensor sum = at::full({1}, kept, at::kLong);
    world.all_reduce(sum);
    EXPECT_EQ(sum.item<int64_t>(), kWidth * kWidth + kWidth) << "on one rank alone";
  });
}

/// Steps on one rank, a change of division, and steps on.
template <typename Model>
void expect_to_go_on() {
  const std::filesystem::path place = folder();
  comm::run_on_ranks(2, [&place](const comm::Group& world) {
    const std::filesystem::path own = place / std::to_string(world.rank());
    std::filesystem::create_directories(own);
    BoosterOptions options = fp32();
    options.ema_decays = {0.9};
    at::manual_seed(1);
    Model alone;
    Boosted one = boost(alone, options);
    (void)train_alone(alone, one, 4);
    one.save_model(own / "model.safetensors");
    const std::filesystem::path state = one.save_optimizer(own);
    const auto want = train_alone(alone, one, 4);
    options = staged<Model>(2);
    options.ema_decays = {0.9};
    options.plugin_config.zero_stage = 1;
    Model model;
    Boosted boosted = boost(model, options, world);
    boosted.load_model(own / "model.safetensors");
    boosted.load_optimizer(state);
    EXPECT_EQ(boosted.steps(), kSteps);
    expect_same(train(model, boosted, 4), want);
    // And back, with averages.
    boosted.save_model(place / "model.safetensors");
    boosted.save_model(place / "average.safetensors", optim::WeightSet::average(0));
    const std::filesystem::path divided = boosted.save_optimizer(place);
    options = fp32();
    options.ema_decays = {0.9};
    Model other;
    Boosted again = boost(other, options);
    again.load_model(place / "model.safetensors");
    again.load_optimizer(divided);
    expect_same(train_alone(other, again, 4), train_alone(alone, one, 4));
    expect_same(other, alone, true);
    Model averaged;
    Boosted sampler = boost(averaged, options);
    sampler.load_model(place / "average.safetensors");
    EXPECT_FALSE(at::allclose(averaged.parameters().back(), other.parameters().back(), 1e-5));
    world.barrier();
  });
  std::error_code ignored;  // every rank comes here
  std::filesystem::remove_all(place, ignored);
}

TEST(StagesTest, BlocksGoOnFromOneRankAndOnOne) {
  expect_to_go_on<Words>();
}

TEST(StagesTest, LayersGoOnFromOneRankAndOnOne) {
  expect_to_go_on<Layers>();
}

TEST(StagesTest, SixteenBitGradientsAddUpInFp32AndSkipTogether) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
      BoosterOptions options = fp32();
      options.precision = precision;
      at::manual_seed(1);
      Words alone;
      Boosted one = boost(alone, options);
      const auto want = train_alone(alone, one, 4);
      options = staged<Words>(2);
      options.precision = precision;
      at::manual_seed(1);
      Words model;
      Boosted boosted = boost(model, options, world);
      const auto got = train(model, boosted, 4);
      // One rank adds up both uses of the words' weight in 16 bits, which later weights show.
      expect_same(got, want, 1e-3);
      EXPECT_NEAR(got[0].grad_norm, want[0].grad_norm, 1e-5 * want[0].grad_norm);
      if (precision == Precision::kFp16) {
        boosted.accumulate(1);
        boosted.execute_pipeline(
            [&](int64_t /*pass*/) { return model.input(0); },
            [&](const at::Tensor& x, int64_t /*pass*/) { return model.loss(x, 0) * 1e9; });
        EXPECT_TRUE(boosted.step().skipped);
      }
    }
  });
}

TEST(StagesTest, RefusesWhatCannotBeHad) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const auto refusal = [&world](torch::nn::Module& model, const BoosterOptions& options,
                                  const optim::OptimizerConfig& config = {}) {
      return error_of(ErrorKind::kConfig, [&] {
        (void)Booster(options, world).boost(model, config, {.value = 1e-2});
        return 0;
      });
    };
    Words words;
    BoosterOptions options = staged<Words>(2);
    options.stages.clear();
    EXPECT_THAT(refusal(words, options),
                HasSubstr("the torch::nn::Module is no torch::nn::Sequential"));
    options.stages = "blocs";
    EXPECT_THAT(refusal(words, options),
                HasSubstr("what `stages` names, blocs, is not in the module"));
    options.stages = "words";
    EXPECT_THAT(refusal(words, options), HasSubstr("words, is no torch::nn::Sequential"));
    options = staged<Words>(2);
    options.plugin_config.pp_chunks = 3;
    EXPECT_THAT(refusal(words, options), HasSubstr("are more stages than the model's 4 blocks"));
    options = staged<Words>(2);
    options.plugin_config.pp_schedule = parallel::PipelineSchedule::kZeroBubble;
    EXPECT_THAT(refusal(words, options), HasSubstr("pp_schedule zero_bubble"));
    options = staged<Words>(1);
    options.plugin_config.pp_chunks = 2;
    EXPECT_THAT(refusal(words, options), HasSubstr("pp_chunks is of a pipeline"));
    options = staged<Words>(2);
    for (const int64_t stage : {2, 3}) {
      options.plugin_config.zero_stage = stage;
      EXPECT_THAT(refusal(words, options), HasSubstr("reduces gradients after each micro-batch"));
    }
    options.plugin_config.zero_stage = 0;
    EXPECT_THAT(refusal(words, options, {.offload = 1.0, .offload_weights = 1.0}),
                HasSubstr("brings weights for one pass at a time"));
    options.grad_clip = 0.0;
    EXPECT_THAT(refusal(words, options, {.in_backward = true}),
                HasSubstr("optim.in_backward=false"));
    Layers frozen;
    for (const size_t child : {2, 4, 7, 8}) {
      for (const at::Tensor& parameter : frozen.ptr(child)->parameters()) {
        at::Tensor(parameter).set_requires_grad(false);
      }
    }
    EXPECT_THAT(refusal(frozen, staged<Layers>(2)),
                HasSubstr("gives rank 1 stages in which nothing requires gradients"));
    Boosted boosted = boost(words, staged<Words>(2), world);
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           boosted.backward(at::ones({}));
                           return 0;
                         }),
                HasSubstr("Hint: execute_pipeline()"));
    Words other;
    Boosted whole = boost(other, fp32());
    const auto pipeline = [&other](Boosted& of) {
      return error_of(ErrorKind::kConfig, [&] {
        of.execute_pipeline([&](int64_t pass) { return other.input(pass); },
                            [&](const at::Tensor& x, int64_t pass) { return other.loss(x, pass); });
        return 0;
      });
    };
    EXPECT_THAT(pipeline(whole), HasSubstr("name one in it with `stages`"));
    world.barrier();
  });
}

}  // namespace stages_test
}  // namespace kinora::train
