// Tensor parallelism and ZeRO for modules that know nothing of either: a small GPT and a small
// ResNet, each with a table of the layers that ranks divide.
//
//   torchrun --no-python --nproc-per-node 2 build/divide_anything gpt
//   torchrun --no-python --nproc-per-node 4 build/divide_anything resnet
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
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(GptBlock(32, 4));
    }
    head = register_module("head", torch::nn::Linear(32, 17));
  }

  at::Tensor loss(at::Device device) {
    const auto start = at::randint(17, {16, 1}, at::device(device).dtype(at::kLong));
    const auto text = (start + 3 * at::arange(12, start.options())) % 17;
    auto x = words(text.narrow(1, 0, 11));
    for (const auto& block : *blocks) {
      x = block->as<GptBlock>()->forward(x);
    }
    return at::cross_entropy_loss(head(x).flatten(0, 1), text.narrow(1, 1, 11).flatten());
  }

  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{nullptr};
};

/// Learns in which half of a picture the light is.
struct ResNet : torch::nn::Module {
  inline static const std::vector<LayerRule> kRules = {
      {"*conv*", LayerCut::kGathered},
      {"head", LayerCut::kGathered},
  };

  ResNet() {
    namespace nn = torch::nn;
    const auto conv = [](int64_t in) {
      return nn::Conv2d(nn::Conv2dOptions(in, 16, 3).padding(1));
    };
    conv0 = register_module("conv0", conv(3));
    conv1 = register_module("conv1", conv(16));
    norm = register_module("norm", nn::BatchNorm2d(16));
    conv2 = register_module("conv2", conv(16));
    head = register_module("head", nn::Linear(32, 2));
  }

  at::Tensor loss(at::Device device) {
    const auto labels = at::randint(2, {16}, at::device(device).dtype(at::kLong));
    const auto halves = at::arange(2, labels.options()).view({1, 1, 2, 1}).repeat_interleave(4, 2);
    const auto images =
        at::randn({16, 3, 8, 8}, at::device(device)) + (halves == labels.view({-1, 1, 1, 1}));
    auto x = conv0(images);
    x = x + conv2(norm(conv1(x)).relu());
    x = at::adaptive_avg_pool2d(x, {2, 1}).flatten(1);
    return at::cross_entropy_loss(head(x), labels);
  }

  torch::nn::Conv2d conv0{nullptr}, conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

template <typename Model>
void train(const kinora::comm::Group& world, at::Device device) {
  const int64_t together = world.size() % 2 == 0 ? 2 : 1;
  Model model;
  const kinora::train::Booster booster({.plugin = "hybrid",
                                        .plugin_config = {.zero_stage = 3, .tp_size = together},
                                        .precision = kinora::Precision::kFp32,
                                        .tensor_rules = Model::kRules},
                                       world);
  auto boosted = booster.boost(model, {.max_grad_norm = 1.0}, {.value = 1e-2});
  // Ranks that divide layers take the same samples, and others others.
  at::manual_seed(static_cast<uint64_t>(booster.data_rank()));
  for (int step = 0; step < 100; ++step) {
    boosted.backward(model.loss(device));
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
  if (argc == 2 && std::string(argv[1]) == "gpt") {
    train<Gpt>(world, device);
  } else if (argc == 2 && std::string(argv[1]) == "resnet") {
    train<ResNet>(world, device);
  } else {
    std::cerr << "usage: divide_anything gpt|resnet\n";
    return 2;
  }
}
