#include "kinora/models/unets/unet_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "kinora/ops/attention.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/fp8.h"
#include "kinora/ops/linear_weights.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/token_attention.h"
#include "kinora/ops/unet_parts.h"

namespace kinora::models {
namespace {

constexpr double kAttentionNormEpsilon = 1e-6;  // of the group norm before attention
constexpr double kBlockNormEpsilon = 1e-5;      // of the layer norms of its blocks
constexpr double kMaxPeriod = 10000.0;
constexpr int64_t kMlpRatio = 4;

/// As PyTorch starts a linear's weight.
nn::Init uniform(int64_t in_features) {
  return {nn::Init::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(in_features))};
}

nn::ConvShape halving(int64_t channels, const UnetConfig& config) {
  nn::ConvShape shape = unet_conv(channels, channels);
  shape.stride = {2, 2};
  if (config.pads_behind) {
    shape.padding = {{0, 1}, {0, 1}};
  }
  return shape;
}

/// Linears on the same input as one; nothing where they do not lie together.
std::optional<ops::LinearWeights> merged(const std::vector<const nn::Linear*>& linears) {
  std::vector<ops::LinearWeights> weights;
  for (const nn::Linear* linear : linears) {
    weights.push_back(linear->weights());
  }
  weights = ops::merge_adjacent(weights);
  return weights.size() == 1 ? std::optional(weights.front()) : std::nullopt;
}

/// x in so many rows and columns; []: as it is.
at::Tensor resized(const at::Tensor& x, at::IntArrayRef size) {
  if (size.empty()) {
    return x;
  }
  return size[0] > x.size(2) ? at::upsample_nearest2d(x, size)
                             : at::avg_pool2d(x, {2, 2}, {}, {0, 0}, /*ceil_mode=*/true,
                                              /*count_include_pad=*/false);
}

}  // namespace

UnetResnet::UnetResnet(int64_t in_channels, int64_t out_channels, const UnetConfig& config)
    : norm1(config.norm_groups, in_channels, config.norm_epsilon),
      conv1(unet_conv(in_channels, out_channels)),
      time_emb_proj(config.time_width(), (config.scales_by_time ? 2 : 1) * out_channels,
                    uniform(config.time_width())),
      norm2(config.norm_groups, out_channels, config.norm_epsilon),
      conv2(unet_conv(out_channels, out_channels)),
      scales_by_time_(config.scales_by_time) {
  add_child("norm1", norm1);
  add_child("conv1", conv1);
  add_child("time_emb_proj", time_emb_proj);
  add_child("norm2", norm2);
  add_child("conv2", conv2);
  if (in_channels != out_channels) {
    conv_shortcut.emplace(nn::ConvShape::same(in_channels, out_channels, 1));
    add_child("conv_shortcut", *conv_shortcut);
  }
  // As latent diffusion starts: the branch adds nothing.
  conv2.weight.init = nn::Init::zero();
  conv2.bias.init = nn::Init::zero();
}

at::Tensor UnetResnet::projected_time(const UnetReads& reads, int64_t batch) const {
  if (!reads.prepared_time.defined()) {
    return time_emb_proj.forward(reads.time);
  }
  const int64_t channels = time_emb_proj.weight.shape[0];
  return reads.prepared_time.narrow(0, batch * time_channel, batch * channels)
      .view({batch, channels});
}

at::Tensor UnetResnet::forward(const at::Tensor& x, const UnetReads& reads,
                               at::IntArrayRef size) const {
  const at::Tensor time = projected_time(reads, x.size(0));
  if (kernels() != nullptr && !scales_by_time_ &&
      size.empty()) {  // biases are added where the results are read
    const at::Tensor h = conv1.forward_without_bias(norm1.forward_silu(x));
    const at::Tensor y =
        conv2.forward_without_bias(norm2.forward_silu(h, conv1.added_bias(), time));
    if (!conv_shortcut) {
      return ops::residual_sum(x, y, conv2.added_bias());
    }
    return ops::residual_sum(conv_shortcut->forward_without_bias(x), y,
                             conv2.added_bias() + conv_shortcut->added_bias());
  }
  at::Tensor h = conv1.forward(resized(norm1.forward_silu(x), size));
  const at::Tensor of_time = time.unsqueeze(-1).unsqueeze(-1);
  if (scales_by_time_) {
    const std::vector<at::Tensor> parts = of_time.chunk(2, 1);
    h = at::silu(norm2.forward(h) * (1 + parts[0]) + parts[1]);
  } else {
    h = norm2.forward_silu(h + of_time);
  }
  const at::Tensor own = resized(x, size);
  return tapped((conv_shortcut ? conv_shortcut->forward(own) : own) + conv2.forward(h));
}

UnetAttention::UnetAttention(int64_t channels, int64_t context_channels, int64_t heads)
    : to_q(channels, channels, uniform(channels), {.has_bias = false}),
      to_k(context_channels, channels, uniform(context_channels), {.has_bias = false}),
      to_v(context_channels, channels, uniform(context_channels), {.has_bias = false}),
      to_out(channels, channels, uniform(channels)),
      heads_(heads) {
  add_child("to_q", to_q);
  add_child("to_k", to_k);
  add_child("to_v", to_v);
  add_child("to_out.0", to_out);
}

at::Tensor UnetAttention::forward(const at::Tensor& x, const at::Tensor& context,
                                  const at::Tensor& lengths, const ImagePair& image) const {
  std::optional<at::Tensor> mask;  // bool [B, 1, 1, M], the tokens that are read
  if (lengths.defined()) {
    const at::Tensor places = at::arange(context.size(1), lengths.options());
    mask = (places < lengths.unsqueeze(1)).unsqueeze(1).unsqueeze(1);
  }
  const auto heads = [this](const at::Tensor& packed) {
    return packed.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [B, heads, N or M, D]
  };
  const at::Tensor q = heads(to_q.forward(x));
  at::Tensor attended = at::scaled_dot_product_attention(q, heads(to_k.forward(context)),
                                                         heads(to_v.forward(context)), mask);
  if (image.pair.defined()) {
    const std::vector<at::Tensor> pair = image.pair.chunk(2, -1);
    attended = attended +
               image.scale * at::scaled_dot_product_attention(q, heads(pair[0]), heads(pair[1]));
  }
  return tapped(to_out.forward(attended.transpose(1, 2).flatten(2)));
}

std::optional<ops::SelfAttentionBody> UnetAttention::self_body(int64_t places) const {
  const auto qkv = merged({&to_q, &to_k, &to_v});
  return qkv ? std::optional(ops::SelfAttentionBody{*qkv, to_out.weights(), heads_, places})
             : std::nullopt;
}

std::optional<ops::CrossAttentionBody> UnetAttention::cross_body() const {
  const auto kv = merged({&to_k, &to_v});
  return kv ? std::optional(ops::CrossAttentionBody{to_q.weights(), *kv, to_out.weights(), heads_})
            : std::nullopt;
}

GatedMlp::GatedMlp(int64_t channels)
    : fc1(channels, 2 * kMlpRatio * channels, uniform(channels)),
      fc2(kMlpRatio * channels, channels, uniform(kMlpRatio * channels)) {
  add_child("net.0.proj", fc1);
  add_child("net.2", fc2);
}

at::Tensor GatedMlp::forward(const at::Tensor& x) const {
  return tapped(fc2.forward(ops::gated_gelu(fc1.forward(x))));
}

UnetTransformerBlock::UnetTransformerBlock(int64_t channels, int64_t text_channels, int64_t heads)
    : norm1(channels),
      attn1(channels, channels, heads),
      norm2(channels),
      attn2(channels, text_channels, heads),
      norm3(channels),
      ff(channels) {
  add_child("norm1", norm1);
  add_child("attn1", attn1);
  add_child("norm2", norm2);
  add_child("attn2", attn2);
  add_child("norm3", norm3);
  add_child("ff", ff);
}

at::Tensor UnetTransformerBlock::forward(const at::Tensor& x, const UnetReads& reads,
                                         size_t number) const {
  const at::Tensor own = norm1.forward(x);
  at::Tensor h = x + attn1.forward(own, own);
  h = h + attn2.forward(norm2.forward(h), reads.text, reads.lengths, reads.image(number));
  return tapped(h + ff.forward(norm3.forward(h)));
}

int64_t UnetProduct::out() const {
  int64_t sum = 0;
  for (const nn::Linear* linear : linears) {
    sum += linear->weight.shape[0];
  }
  return sum;
}

bool UnetProduct::fits_fp8() const {
  return in() % ops::Fp8::kMultiple == 0 && out() % ops::Fp8::kMultiple == 0;
}

std::vector<UnetProduct> UnetTransformerBlock::products() {
  return {{"attn1.to_q, to_k, to_v", {&attn1.to_q, &attn1.to_k, &attn1.to_v}},
          {"attn1.to_out.0", {&attn1.to_out}},
          {"attn2.to_q", {&attn2.to_q}},
          {"attn2.to_k, to_v", {&attn2.to_k, &attn2.to_v}},
          {"attn2.to_out.0", {&attn2.to_out}},
          {"ff.net.0.proj", {&ff.fc1}},
          {"ff.net.2", {&ff.fc2}}};
}

std::optional<ops::Block> UnetTransformerBlock::fast(int64_t places) const {
  const nn::Linear* const linears[] = {&attn1.to_q, &attn1.to_k, &attn1.to_v, &attn1.to_out,
                                       &attn2.to_q, &attn2.to_k, &attn2.to_v, &attn2.to_out,
                                       &ff.fc1,     &ff.fc2};
  for (const nn::Linear* linear : linears) {
    if (linear->update() != nullptr && !linear->update()->has_weights()) {
      return std::nullopt;
    }
  }
  const auto self = attn1.self_body(places);
  const auto cross = attn2.cross_body();
  if (!self || !cross) {
    return std::nullopt;
  }
  ops::Block block;
  const auto add = [&block](auto body) {
    block.branches.push_back(
        {.body = std::move(body),
         .seam = {.shift = block.num_vectors, .scale = block.num_vectors + 1}});
    block.num_vectors += 2;
  };
  add(*self);
  add(*cross);
  add(ff.body());
  return block;
}

UnetTransformer::UnetTransformer(int64_t channels, int64_t text_channels, int64_t heads,
                                 int64_t depth, int64_t norm_groups)
    : norm(norm_groups, channels, kAttentionNormEpsilon),
      proj_in(channels, channels, uniform(channels)),
      proj_out(channels, channels, nn::Init::zero()) {
  add_child("norm", norm);
  add_child("proj_in", proj_in);
  for (int64_t i = 0; i < depth; ++i) {
    transformer_blocks.push_back(
        std::make_unique<UnetTransformerBlock>(channels, text_channels, heads));
    add_child("transformer_blocks." + std::to_string(i), *transformer_blocks.back());
  }
  add_child("proj_out", proj_out);
}

std::optional<ops::BlockStack> UnetTransformer::stack(int64_t places) const {
  if (kernels() == nullptr) {
    return std::nullopt;
  }
  ops::BlockStack stack{.blocks = {},
                        .norm_epsilon = kBlockNormEpsilon,
                        .has_final_norm = false,
                        .recompute = recompute,
                        .overwrites_gradients = ops::OverwriteGradients::is_on()};
  for (const auto& block : transformer_blocks) {
    std::optional<ops::Block> fast = block->fast(places);
    if (!fast) {
      return std::nullopt;
    }
    stack.blocks.push_back(std::move(*fast));
  }
  return stack;
}

int64_t UnetTransformer::num_fp8_products() {
  int64_t count = 0;
  for (const auto& block : transformer_blocks) {
    count += std::ranges::count_if(block->products(), &UnetProduct::fits_fp8);
  }
  return count;
}

std::vector<std::vector<ops::LinearWeights>> UnetTransformer::number_products(int64_t first) {
  if (!stack(/*places=*/1)) {
    return {};
  }
  std::vector<std::vector<ops::LinearWeights>> numbered;
  for (const auto& block : transformer_blocks) {
    std::vector<ops::LinearWeights>& of_block = numbered.emplace_back();
    for (const UnetProduct& product : block->products()) {
      if (product.fits_fp8()) {
        product.linears.front()->set_number(first++);
        of_block.push_back(*merged({product.linears.begin(), product.linears.end()}));
      }
    }
  }
  return numbered;
}

std::vector<std::string> UnetTransformer::what_stays(const std::string& path) {
  if (!stack(/*places=*/1)) {
    return {path +
            " computes without a stack of blocks: of its to_q, to_k, to_v some are trained "
            "and some frozen"};
  }
  std::vector<std::string> stays;
  for (size_t i = 0; i < transformer_blocks.size(); ++i) {
    for (const UnetProduct& product : transformer_blocks[i]->products()) {
      if (!product.fits_fp8()) {
        stays.push_back(path + ".transformer_blocks." + std::to_string(i) + "." + product.name +
                        ": " + std::to_string(product.in()) + " -> " +
                        std::to_string(product.out()) + ", no multiples of " +
                        std::to_string(ops::Fp8::kMultiple));
      }
    }
  }
  return stays;
}

at::Tensor UnetTransformer::norm_vectors() const {
  std::vector<at::Tensor> vectors;
  for (const auto& block : transformer_blocks) {
    for (const nn::LayerNorm* layer : {&block->norm1, &block->norm2, &block->norm3}) {
      vectors.push_back(ops::with_gradient(layer->bias.value, layer->bias.grad));
      vectors.push_back(ops::with_gradient(layer->weight.value, layer->weight.grad));
    }
  }
  at::Tensor shifts_and_scales = at::stack(vectors).to(at::kFloat).unflatten(0, {-1, 2});
  shifts_and_scales.select(1, 1).sub_(1.0);  // what is scaled by 1 + scale
  return shifts_and_scales.reshape({1, -1});
}

std::vector<at::Tensor> UnetTransformer::prepare(const at::Tensor& text) const {
  const std::optional<ops::BlockStack> stack = this->stack(/*places=*/1);
  if (!stack) {
    return {};
  }
  std::vector<at::Tensor> prepared = {norm_vectors()};
  for (const auto& block : transformer_blocks) {
    prepared.push_back(ops::packed_text(*kernels(), *block->attn2.cross_body(),
                                        text.to(proj_in.weight.value.scalar_type())));
  }
  return prepared;
}

at::Tensor UnetTransformer::run(ops::BlockStack stack, const at::Tensor& tokens,
                                const UnetReads& reads) const {
  ops::StackInputs inputs{.x = tokens, .vectors = {}, .text_lengths = reads.lengths};
  size_t number = first_image;
  for (ops::Block& block : stack.blocks) {
    const auto [pair, scale] = reads.image(number++);
    auto& body = std::get<ops::CrossAttentionBody>(block.branches[1].body);
    body.beside_packed = pair;
    body.beside_scale = scale;
  }
  if (!reads.prepared_texts.empty()) {
    const at::Tensor* next = &reads.prepared_texts[first_prepared];
    inputs.vectors = *next++;
    for (ops::Block& block : stack.blocks) {
      std::get<ops::CrossAttentionBody>(block.branches[1].body).text_packed = *next++;
    }
  } else {
    inputs.vectors = norm_vectors();
    inputs.text = reads.text.to(tokens.scalar_type());
    if (inputs.vectors.requires_grad()) {  // their gradients are sums over few rows each
      inputs.vectors = inputs.vectors.expand({tokens.size(0), -1});
    }
  }
  return ops::run_blocks(*kernels(), std::move(stack), std::move(inputs));
}

at::Tensor UnetTransformer::forward(const at::Tensor& x, const UnetReads& reads) const {
  at::Tensor tokens = proj_in.forward(norm.forward(x).flatten(2).transpose(1, 2));  // [B, N, C]
  if (std::optional<ops::BlockStack> fast = stack(tokens.size(1))) {
    fast->new_weights = reads.new_weights;
    tokens = run(std::move(*fast), tokens, reads);
    const at::Tensor places = x.permute({0, 2, 3, 1});  // [B, H, W, C]
    if (!at::GradMode::is_enabled() && places.is_contiguous() && proj_out.update() == nullptr) {
      const int64_t channels = x.size(1);
      (void)kernels()->linear({.value = tokens.view({-1, channels})}, proj_out.weights(),
                              places.view({-1, channels}));
      return x;
    }
  } else {
    size_t number = first_image;
    for (const auto& block : transformer_blocks) {
      tokens = block->forward(tokens, reads, number++);
    }
  }
  const at::Tensor places = proj_out.forward(tokens).unflatten(1, {x.size(2), x.size(3)});
  return tapped(x + places.permute({0, 3, 1, 2}));
}

UnetPlaceAttention::UnetPlaceAttention(int64_t channels, int64_t heads, const UnetConfig& config)
    : group_norm(config.norm_groups, channels, config.norm_epsilon),
      qkv(channels, 3 * channels, uniform(channels)),
      to_out(channels, channels, nn::Init::zero()),
      heads_(heads) {
  add_child("group_norm", group_norm);
  add_child("qkv", qkv);
  add_child("to_out.0", to_out);
}

at::Tensor UnetPlaceAttention::forward(const at::Tensor& x) const {
  const at::Tensor packed =
      qkv.forward(group_norm.forward(x).flatten(2).transpose(1, 2));  // [B, N, 3 C]
  const at::Tensor attended =
      kernels() == nullptr
          ? ops::attention(packed, heads_)
          : ops::self_attention(*kernels(), packed.unsqueeze(2), heads_, {}).squeeze(2);
  const at::Tensor places = to_out.forward(attended).unflatten(1, {x.size(2), x.size(3)});
  return tapped(x + places.permute({0, 3, 1, 2}));
}

UnetUnit::UnetUnit(int64_t in_channels, int64_t out_channels, const UnetConfig& config,
                   int64_t text_channels, int64_t heads, int64_t depth)
    : resnet(in_channels, out_channels, config) {
  if (depth > 0 && config.attends == UnetAttends::kPlaces) {
    place_attention.emplace(out_channels, heads, config);
  } else if (depth > 0) {
    attention.emplace(out_channels, text_channels, heads, depth, config.norm_groups);
  }
}

nn::Module* UnetUnit::attending() {
  if (place_attention) {
    return &*place_attention;
  }
  return attention ? &*attention : nullptr;
}

at::Tensor UnetUnit::forward(const at::Tensor& x, const UnetReads& reads) const {
  const at::Tensor h = resnet.forward(x, reads);
  if (place_attention) {
    return place_attention->forward(h);
  }
  return attention ? attention->forward(h, reads) : h;
}

UnetLevel::UnetLevel(const std::vector<int64_t>& in_channels, int64_t channels,
                     const UnetConfig& config, int64_t text_channels, int64_t heads, int64_t depth,
                     Next next) {
  for (const int64_t in : in_channels) {
    units_.push_back(std::make_unique<UnetUnit>(in, channels, config, text_channels, heads, depth));
    const std::string number = std::to_string(units_.size() - 1);
    add_child("resnets." + number, units_.back()->resnet);
    if (nn::Module* attending = units_.back()->attending()) {
      add_child("attentions." + number, *attending);
    }
  }
  if (next != Next::kNone && config.resizes_in_blocks) {
    resize_block_.emplace(channels, channels, config);
    add_child(next == Next::kHalf ? "downsamplers.0" : "upsamplers.0", *resize_block_);
  } else if (next == Next::kHalf) {
    resample_.emplace(halving(channels, config));
    add_child("downsamplers.0.conv", *resample_);
  } else if (next == Next::kDouble) {
    resample_.emplace(unet_conv(channels, channels));
    add_child("upsamplers.0.conv", *resample_);
  }
}

at::Tensor UnetLevel::halved(const at::Tensor& x, const UnetReads& reads) const {
  return resize_block_
             ? resize_block_->forward(x, reads, {(x.size(2) + 1) / 2, (x.size(3) + 1) / 2})
             : resample_->forward(x);
}

at::Tensor UnetLevel::doubled(const at::Tensor& x, int64_t rows, int64_t columns,
                              const UnetReads& reads) const {
  if (resize_block_) {
    return resize_block_->forward(x, reads, {rows, columns});
  }
  if (kernels() != nullptr && resample_->update() == nullptr && rows == 2 * x.size(2) &&
      columns == 2 * x.size(3)) {
    return resample_->forward_doubled(
        x, {1, 1},
        reads.prepared_texts.empty() ? at::Tensor() : reads.prepared_texts[prepared_doubling]);
  }
  return resample_->forward(at::upsample_nearest2d(x, {rows, columns}));
}

UnetMiddle::UnetMiddle(const UnetConfig& config, int64_t text_channels)
    : first(config.channels.back(), config.channels.back(), config, text_channels,
            config.heads.back(), config.middle_depth),
      second(config.channels.back(), config.channels.back(), config) {
  add_child("resnets.0", first.resnet);
  if (nn::Module* attending = first.attending()) {
    add_child("attentions.0", *attending);
  }
  add_child("resnets.1", second);
}

at::Tensor UnetMiddle::forward(const at::Tensor& x, const UnetReads& reads) const {
  return tapped(second.forward(first.forward(x, reads), reads));
}

nn::ConvShape unet_conv(int64_t in_channels, int64_t out_channels) {
  nn::ConvShape shape = nn::ConvShape::same(in_channels, out_channels, 3);
  shape.channels_last = true;
  return shape;
}

at::Tensor unet_sinusoids(const at::Tensor& numbers, int64_t count, int64_t shift,
                          bool sines_first) {
  const int64_t half = count / 2;
  const at::Tensor frequencies =
      at::exp(at::arange(half, numbers.options()) * (-std::log(kMaxPeriod)) /
              static_cast<double>(half - shift));
  const at::Tensor angles = numbers.unsqueeze(-1) * frequencies;
  return sines_first ? at::cat({at::sin(angles), at::cos(angles)}, -1)
                     : at::cat({at::cos(angles), at::sin(angles)}, -1);
}

UnetClassVectors::UnetClassVectors(int64_t num_classes, int64_t width)
    : weight{.shape = {num_classes + 1, width},
             .init = nn::Init::normal(1.0),
             .fp32_island = true,
             .value = {},
             .grad = {}} {
  add_parameter("weight", weight);
}

at::Tensor UnetClassVectors::forward(const at::Tensor& labels) const {
  return tapped(at::embedding(ops::with_gradient(weight.value, weight.grad), labels));
}

UnetEmbedding::UnetEmbedding(int64_t inputs, int64_t width)
    : linear_1(inputs, width, uniform(inputs), {.fp32_island = true}),
      linear_2(width, width, uniform(width), {.fp32_island = true}) {
  add_child("linear_1", linear_1);
  add_child("linear_2", linear_2);
}

at::Tensor UnetEmbedding::forward(const at::Tensor& x) const {
  return tapped(linear_2.forward(at::silu(linear_1.forward(x))));
}

}  // namespace kinora::models
