// Parallelism for modules that know nothing of it: a small GPT and a small ResNet, each with a
// table of the layers that ranks divide, or by stages of consecutive blocks.
//
//   torchrun --no-python --nproc-per-node 2 build/divide_anything gpt layers
//   torchrun --no-python --nproc-per-node 4 build/divide_anything resnet stages
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/train/boost/booster.h"
#include "kinora/train/setup.h"

namespace {

using kinora::train::LayerCut;
using kinora::train::LayerRule;

struct GptBlock : torch::nn::Module {
  GptBlock(int64_t width, int64_t heads) : head_width(width / heads) {
    namespace nn = torch::nn;
    before = register_module("before", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    after = register_module("after", nn::LayerNorm(nn::LayerNormOptions({width})));
    wide = register_module("wide", nn::Linear(width, 4 * width));
    narrow = register_module("narrow", nn::Linear(4 * width, width));
  }

  at::Tensor forward(at::Tensor x) {
    // As many heads as this rank has: -1.
    const auto parts =
        qkv(before(x)).view({x.size(0), x.size(1), 3, -1, head_width}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                       /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + narrow(at::gelu(wide(after(x))));
  }

  int64_t head_width;
  torch::nn::LayerNorm before{nullptr}, after{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, wide{nullptr}, narrow{nullptr};
};

/// Learns to go on with 0, 3, 6, ..., modulo 17.
struct Gpt : torch::nn::Module {
  inline static const std::vector<LayerRule> kRules = {
      {"blocks.*.qkv", LayerCut::kOutputs, 3},
      {"blocks.*.out", LayerCut::kInputs},
      {"blocks.*.wide", LayerCut::kOutputs},
      {"blocks.*.narrow", LayerCut::kInputs},
  };

  Gpt() {
    words = register_module("words", torch::nn::Embedding(17, 32));
    blocks = register_module("blocks", torch::nn::Sequential());
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(GptBlock(32, 4));
    }
    head = register_module("head", torch::nn::Linear(32, 17));
  }

  using Sample = at::Tensor;
  static Sample draw(at::Device device) {
    const auto start = at::randint(17, {16, 1}, at::device(device).dtype(at::kLong));
    return (start + 3 * at::arange(12, start.options())) % 17;
  }
  at::Tensor input(const Sample& text) { return words(text.narrow(1, 0, 11)); }
  at::Tensor loss(const at::Tensor& x, const Sample& text) {
    return at::cross_entropy_loss(head(x).flatten(0, 1), text.narrow(1, 1, 11).flatten());
  }

  torch::nn::Embedding words{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};
};

torch::nn::Conv2d conv(int64_t in) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 16, 3).padding(1));
}

struct ResNetBlock : torch::nn::Module {
  ResNetBlock() {
    conv1 = register_module("conv1", conv(16));
    norm = register_module("norm", torch::nn::BatchNorm2d(16));
    conv2 = register_module("conv2", conv(16));
  }

  at::Tensor forward(const at::Tensor& x) { return x + conv2(norm(conv1(x)).relu()); }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};

/// Learns in which half of a picture the light is.
struct ResNet : torch::nn::Module {
  inline static const std::vector<LayerRule> kRules = {
      {"*conv*", LayerCut::kGathered},
      {"head", LayerCut::kGathered},
  };

  ResNet() {
    blocks = register_module("blocks", torch::nn::Sequential());
    blocks->push_back("conv0", conv(3));
    blocks->push_back(ResNetBlock());
    head = register_module("head", torch::nn::Linear(32, 2));
  }

  struct Sample {
    at::Tensor images, labels;
  };
  static Sample draw(at::Device device) {
    const auto labels = at::randint(2, {16}, at::device(device).dtype(at::kLong));
    const auto halves = at::arange(2, labels.options()).view({1, 1, 2, 1}).repeat_interleave(4, 2);
    const auto noise = at::randn({16, 3, 8, 8}, at::device(device));
    return {noise + (halves == labels.view({-1, 1, 1, 1})), labels};
  }
  static at::Tensor input(const Sample& sample) { return sample.images; }
  at::Tensor loss(const at::Tensor& x, const Sample& sample) {
    const auto halves = at::adaptive_avg_pool2d(x, {2, 1}).flatten(1);
    return at::cross_entropy_loss(head(halves), sample.labels);
  }

  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};
};

template <typename Model>
void train(const kinora::comm::Group& world, at::Device device, bool by_stages) {
  const int64_t together = world.size() % 2 == 0 ? 2 : 1;
  Model model;
  kinora::train::BoosterOptions options{.plugin = "hybrid",
                                        .precision = kinora::Precision::kFp32,
                                        .tensor_rules = Model::kRules,
                                        .stages = "blocks"};
  options.plugin_config.zero_stage = by_stages ? 1 : 3;
  (by_stages ? options.plugin_config.pp_size : options.plugin_config.tp_size) = together;
  const kinora::train::Booster booster(options, world);
  auto boosted = booster.boost(model, {.max_grad_norm = 1.0}, {.value = 1e-2});
  // Ranks that divide a model take the same samples, and others others.
  at::manual_seed(static_cast<uint64_t>(booster.data_rank()));
  constexpr int64_t kPasses = 2;
  boosted.accumulate(kPasses);
  for (int step = 0; step < 100; ++step) {
    std::vector<typename Model::Sample> samples;
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      samples.push_back(Model::draw(device));
    }
    boosted.execute_pipeline(
        [&](int64_t pass) { return model.input(samples[pass]); },
        [&](const at::Tensor& x, int64_t pass) { return model.loss(x, samples[pass]); });
    const auto result = boosted.step();
    if (step % 33 == 0 && world.rank() == 0) {
      std::cout << "step " << step << " loss " << result.loss << '\n';
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto rank = kinora::comm::world_from_environment();
  const auto device = kinora::train::rank_device(rank);
  const auto world = kinora::comm::connect(rank, device);
  const std::string arguments = argc == 3 ? argv[1] + std::string(" ") + argv[2] : "";
  if (arguments == "gpt layers" || arguments == "gpt stages") {
    train<Gpt>(world, device, arguments == "gpt stages");
  } else if (arguments == "resnet layers" || arguments == "resnet stages") {
    train<ResNet>(world, device, arguments == "resnet stages");
  } else {
    std::cerr << "usage: divide_anything gpt|resnet layers|stages\n";
    return 2;
  }
}
