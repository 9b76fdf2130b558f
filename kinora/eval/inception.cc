#include "kinora/eval/inception.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include <utility>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

constexpr double kInceptionNormEpsilon = 0.001;

struct NamedSpec {
  std::string name;
  ConvSpec spec;
};
using Specs = std::vector<NamedSpec>;

/// kernel rows x columns that keep the size.
ConvSpec same(int64_t in, int64_t out, int64_t rows, int64_t columns) {
  return {.in_channels = in,
          .out_channels = out,
          .kernel = {rows, columns},
          .padding = {rows / 2, columns / 2}};
}

/// 3 x 3 without padding.
ConvSpec inner(int64_t in, int64_t out, int64_t stride) {
  return {.in_channels = in, .out_channels = out, .kernel = {3, 3}, .stride = stride};
}

/// `specs` with `block` before their names.
void add(Specs& all, const std::string& block, const Specs& specs) {
  for (const NamedSpec& each : specs) {
    all.push_back({block + "." + each.name, each.spec});
  }
}

void add_a(Specs& all, const std::string& block, int64_t in, int64_t pool) {
  add(all, block,
      {{"branch1x1", same(in, 64, 1, 1)},
       {"branch5x5_1", same(in, 48, 1, 1)},
       {"branch5x5_2", same(48, 64, 5, 5)},
       {"branch3x3dbl_1", same(in, 64, 1, 1)},
       {"branch3x3dbl_2", same(64, 96, 3, 3)},
       {"branch3x3dbl_3", same(96, 96, 3, 3)},
       {"branch_pool", same(in, pool, 1, 1)}});
}

void add_c(Specs& all, const std::string& block, int64_t mid) {
  constexpr int64_t kIn = 768;
  add(all, block,
      {{"branch1x1", same(kIn, 192, 1, 1)},
       {"branch7x7_1", same(kIn, mid, 1, 1)},
       {"branch7x7_2", same(mid, mid, 1, 7)},
       {"branch7x7_3", same(mid, 192, 7, 1)},
       {"branch7x7dbl_1", same(kIn, mid, 1, 1)},
       {"branch7x7dbl_2", same(mid, mid, 7, 1)},
       {"branch7x7dbl_3", same(mid, mid, 1, 7)},
       {"branch7x7dbl_4", same(mid, mid, 7, 1)},
       {"branch7x7dbl_5", same(mid, 192, 1, 7)},
       {"branch_pool", same(kIn, 192, 1, 1)}});
}

void add_e(Specs& all, const std::string& block, int64_t in) {
  add(all, block,
      {{"branch1x1", same(in, 320, 1, 1)},
       {"branch3x3_1", same(in, 384, 1, 1)},
       {"branch3x3_2a", same(384, 384, 1, 3)},
       {"branch3x3_2b", same(384, 384, 3, 1)},
       {"branch3x3dbl_1", same(in, 448, 1, 1)},
       {"branch3x3dbl_2", same(448, 384, 3, 3)},
       {"branch3x3dbl_3a", same(384, 384, 1, 3)},
       {"branch3x3dbl_3b", same(384, 384, 3, 1)},
       {"branch_pool", same(in, 192, 1, 1)}});
}

Specs all_specs() {
  Specs all = {{"Conv2d_1a_3x3", inner(3, 32, 2)},
               {"Conv2d_2a_3x3", inner(32, 32, 1)},
               {"Conv2d_2b_3x3", same(32, 64, 3, 3)},
               {"Conv2d_3b_1x1", same(64, 80, 1, 1)},
               {"Conv2d_4a_3x3", inner(80, 192, 1)}};
  add_a(all, "Mixed_5b", 192, 32);
  add_a(all, "Mixed_5c", 256, 64);
  add_a(all, "Mixed_5d", 288, 64);
  add(all, "Mixed_6a",
      {{"branch3x3", inner(288, 384, 2)},
       {"branch3x3dbl_1", same(288, 64, 1, 1)},
       {"branch3x3dbl_2", same(64, 96, 3, 3)},
       {"branch3x3dbl_3", inner(96, 96, 2)}});
  add_c(all, "Mixed_6b", 128);
  add_c(all, "Mixed_6c", 160);
  add_c(all, "Mixed_6d", 160);
  add_c(all, "Mixed_6e", 192);
  add(all, "Mixed_7a",
      {{"branch3x3_1", same(768, 192, 1, 1)},
       {"branch3x3_2", inner(192, 320, 2)},
       {"branch7x7x3_1", same(768, 192, 1, 1)},
       {"branch7x7x3_2", same(192, 192, 1, 7)},
       {"branch7x7x3_3", same(192, 192, 7, 1)},
       {"branch7x7x3_4", inner(192, 192, 2)}});
  add_e(all, "Mixed_7b", 1280);
  add_e(all, "Mixed_7c", 2048);
  return all;
}

/// 3 x 3 that keeps the size; padding is not counted.
at::Tensor mean_pool(const at::Tensor& x) {
  return at::avg_pool2d(x, 3, 1, 1, /*ceil_mode=*/false, /*count_include_pad=*/false);
}

/// 3 x 3 that halves the size.
at::Tensor max_pool(const at::Tensor& x) {
  return at::max_pool2d(x, 3, 2);
}

}  // namespace

Inception::Inception(const checkpoint::WeightsFile& file, InputResize resize, at::Device device)
    : resize_(resize) {
  for (const auto& [name, spec] : all_specs()) {
    convs_.emplace(
        name, FoldedConv(file, name + ".conv", name + ".bn", spec, kInceptionNormEpsilon, device));
  }
  classifier_ = read_weight(file, "fc.weight", {kClasses, kFeatures}, device);
}

std::string Inception::name() const {
  constexpr const char* kNames[] = {"clean", "pytorch", "tensorflow"};
  return std::string("inception-v3-fid, resize ") + kNames[static_cast<size_t>(resize_)];
}

at::Tensor Inception::prepare(const at::Tensor& sample) const {
  KINORA_CHECK(sample.dim() == 3, kShape,
               "[features] the Inception takes images [3, H, W], got a sample of shape ",
               sample.sizes());
  const at::Tensor pixels = resized(sample, kSize, resize_);
  // pytorch-fid maps 0..255 to -1..1, the others as the graph of TensorFlow does.
  return resize_ == InputResize::kPytorch ? in_range(pixels, PixelRange::kSigned)
                                          : (pixels - 128.0) / 128.0;
}

NetworkOutput Inception::forward(const at::Tensor& inputs) const {
  at::Tensor x = conv(inputs, "Conv2d_1a_3x3");  // [B, 32, 149, 149]
  x = conv(x, "Conv2d_2a_3x3");                  // [B, 32, 147, 147]
  x = max_pool(conv(x, "Conv2d_2b_3x3"));        // [B, 64, 73, 73]
  x = conv(x, "Conv2d_3b_1x1");                  // [B, 80, 73, 73]
  x = max_pool(conv(x, "Conv2d_4a_3x3"));        // [B, 192, 35, 35]
  for (const char* block : {"Mixed_5b", "Mixed_5c", "Mixed_5d"}) {
    x = block_a(x, block);  // [B, 288, 35, 35]
  }
  x = block_b(x, "Mixed_6a");  // [B, 768, 17, 17]
  for (const char* block : {"Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"}) {
    x = block_c(x, block);
  }
  x = block_d(x, "Mixed_7a");                   // [B, 1280, 8, 8]
  x = block_e(x, "Mixed_7b", LastPool::kMean);  // [B, 2048, 8, 8]
  x = block_e(x, "Mixed_7c", LastPool::kMax);   // [B, 2048, 8, 8]
  const at::Tensor features = x.mean({2, 3});   // [B, 2048]
  return {.features = features, .logits = at::matmul(features, classifier_.t())};
}

at::Tensor Inception::conv(const at::Tensor& x, const std::string& name) const {
  return at::relu(convs_.at(name)(x));
}

at::Tensor Inception::chain(at::Tensor x, const std::string& block,
                            std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    x = conv(x, block + "." + name);
  }
  return x;
}

at::Tensor Inception::block_a(const at::Tensor& x, const std::string& block) const {
  return at::cat({chain(x, block, {"branch1x1"}), chain(x, block, {"branch5x5_1", "branch5x5_2"}),
                  chain(x, block, {"branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"}),
                  chain(mean_pool(x), block, {"branch_pool"})},
                 1);
}

at::Tensor Inception::block_b(const at::Tensor& x, const std::string& block) const {
  return at::cat(
      {chain(x, block, {"branch3x3"}),
       chain(x, block, {"branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"}), max_pool(x)},
      1);
}

at::Tensor Inception::block_c(const at::Tensor& x, const std::string& block) const {
  return at::cat({chain(x, block, {"branch1x1"}),
                  chain(x, block, {"branch7x7_1", "branch7x7_2", "branch7x7_3"}),
                  chain(x, block,
                        {"branch7x7dbl_1", "branch7x7dbl_2", "branch7x7dbl_3", "branch7x7dbl_4",
                         "branch7x7dbl_5"}),
                  chain(mean_pool(x), block, {"branch_pool"})},
                 1);
}

at::Tensor Inception::block_d(const at::Tensor& x, const std::string& block) const {
  return at::cat(
      {chain(x, block, {"branch3x3_1", "branch3x3_2"}),
       chain(x, block, {"branch7x7x3_1", "branch7x7x3_2", "branch7x7x3_3", "branch7x7x3_4"}),
       max_pool(x)},
      1);
}

at::Tensor Inception::block_e(const at::Tensor& x, const std::string& block, LastPool pool) const {
  const at::Tensor wide = chain(x, block, {"branch3x3_1"});
  const at::Tensor twice = chain(x, block, {"branch3x3dbl_1", "branch3x3dbl_2"});
  const at::Tensor pooled = pool == LastPool::kMax ? at::max_pool2d(x, 3, 1, 1) : mean_pool(x);
  return at::cat({chain(x, block, {"branch1x1"}), chain(wide, block, {"branch3x3_2a"}),
                  chain(wide, block, {"branch3x3_2b"}), chain(twice, block, {"branch3x3dbl_3a"}),
                  chain(twice, block, {"branch3x3dbl_3b"}), chain(pooled, block, {"branch_pool"})},
                 1);
}

}  // namespace kinora::eval
