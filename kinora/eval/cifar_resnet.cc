#include "kinora/eval/cifar_resnet.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

constexpr double kResnetNormEpsilon = 1e-5;
constexpr int64_t kFeatures = 64;
constexpr int64_t kWidths[] = {16, 32, 64};
constexpr int64_t kBlocksPerWidth = 3;

ConvSpec three_by_three(int64_t in, int64_t out, int64_t stride) {
  return {.in_channels = in,
          .out_channels = out,
          .kernel = {3, 3},
          .stride = stride,
          .padding = {1, 1}};
}

at::Tensor by_channel(const std::array<double, 3>& values) {
  return at::tensor({values[0], values[1], values[2]}, at::kFloat).view({3, 1, 1});
}

}  // namespace

CifarResnet::CifarResnet(const checkpoint::WeightsFile& file, std::string name,
                         const PixelNorm& norm, at::Device device)
    : name_(std::move(name)), mean_(by_channel(norm.mean)), std_(by_channel(norm.std)) {
  const std::string prefix = file.contains("module.conv1.weight") ? "module." : "";
  const auto conv = [&](const std::string& place, const char* number, const ConvSpec& spec) {
    return FoldedConv(file, prefix + place + "conv" + number, prefix + place + "bn" + number, spec,
                      kResnetNormEpsilon, device);
  };
  stem_.push_back(conv("", "1", three_by_three(3, kWidths[0], 1)));
  int64_t in = kWidths[0];
  for (size_t layer = 0; layer < std::size(kWidths); ++layer) {
    const int64_t out = kWidths[layer];
    for (int64_t i = 0; i < kBlocksPerWidth; ++i) {
      const std::string place = "layer" + std::to_string(layer + 1) + "." + std::to_string(i) + ".";
      const int64_t stride = layer > 0 && i == 0 ? 2 : 1;
      blocks_.push_back({.first = conv(place, "1", three_by_three(in, out, stride)),
                         .second = conv(place, "2", three_by_three(out, out, 1)),
                         .stride = stride,
                         .more_channels = out - in});
      in = out;
    }
  }
  const std::vector<int64_t> shape = file.shape(prefix + "linear.weight");
  const int64_t num_classes = shape.empty() ? 0 : shape.front();
  weight_ = read_weight(file, prefix + "linear.weight", {num_classes, kFeatures}, device);
  bias_ = read_weight(file, prefix + "linear.bias", {num_classes}, device);
}

at::Tensor CifarResnet::prepare(const at::Tensor& sample) const {
  KINORA_CHECK(sample.sizes() == at::IntArrayRef({3, kSize, kSize}), kShape,
               "[features] resnet20-cifar takes images [3, 32, 32], got a sample of shape ",
               sample.sizes());
  return (in_range(sample.to(at::kFloat), PixelRange::kUnit) - mean_) / std_;
}

NetworkOutput CifarResnet::forward(const at::Tensor& inputs) const {
  at::Tensor x = at::relu(stem_.front()(inputs));
  for (const Block& block : blocks_) {
    const at::Tensor y = block.second(at::relu(block.first(x)));
    const at::Tensor kept =
        x.slice(2, 0, std::nullopt, block.stride).slice(3, 0, std::nullopt, block.stride);
    // Zero channels on both sides: shortcuts have no weights.
    const int64_t pad = block.more_channels / 2;
    x = at::relu(y + at::constant_pad_nd(kept, {0, 0, 0, 0, pad, pad}));
  }
  const at::Tensor features = x.mean({2, 3});  // [B, 64]
  return {.features = features, .logits = at::linear(features, weight_, bias_)};
}

}  // namespace kinora::eval
