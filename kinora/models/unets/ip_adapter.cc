#include "kinora/models/unets/ip_adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

/// As PyTorch starts a linear's weight.
nn::Init started(int64_t in_features) {
  return {nn::Init::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(in_features))};
}

nn::Linear without_bias(int64_t in_features, int64_t out_features) {
  return {in_features, out_features, started(in_features), {.has_bias = false}};
}

/// An attention to the text: its number in the files and its channels.
struct TextAttention {
  int64_t number;
  int64_t channels;
};

/// All of a U-Net, in the order in which it computes them.
std::vector<TextAttention> text_attentions(const UnetConfig& config) {
  std::vector<int64_t> down;
  std::vector<int64_t> up;
  for (int64_t level = 0; level < config.levels(); ++level) {
    const auto place = static_cast<size_t>(level);
    down.insert(down.end(), static_cast<size_t>(config.resnets * config.depths[place]),
                config.channels[place]);
    const size_t above = config.channels.size() - 1 - place;
    up.insert(up.end(), static_cast<size_t>((config.resnets + 1) * config.depths[above]),
              config.channels[above]);
  }
  const std::vector<int64_t> middle(static_cast<size_t>(config.middle_depth),
                                    config.channels.back());
  std::vector<TextAttention> all;
  const auto add = [&all](const std::vector<int64_t>& channels, size_t before) {
    for (size_t i = 0; i < channels.size(); ++i) {
      all.push_back({static_cast<int64_t>(2 * (before + i) + 1), channels[i]});
    }
  };
  add(down, 0);
  add(middle, down.size() + up.size());
  add(up, down.size());
  return all;
}

}  // namespace

ImageProjection::ImageProjection(const ModelConfig& config)
    : tokens_(config.unet.ip_adapter.tokens),
      proj_(config.unet.ip_adapter.channels, tokens_ * config.text_channels,
            started(config.unet.ip_adapter.channels)),
      norm_(config.text_channels) {
  add_child("proj", proj_);
  add_child("norm", norm_);
}

at::Tensor ImageProjection::forward(const at::Tensor& image) const {
  return tapped(norm_.forward(proj_.forward(image).unflatten(-1, {tokens_, -1})));
}

Resampler::Block::Block(const IpAdapterConfig& config)
    : heads_(config.heads),
      norm1_(config.width),
      norm2_(config.width),
      to_q_(without_bias(config.width, config.heads * kResamplerHeadChannels)),
      to_kv_(without_bias(config.width, 2 * config.heads * kResamplerHeadChannels)),
      to_out_(without_bias(config.heads * kResamplerHeadChannels, config.width)),
      norm_(config.width),
      fc1_(without_bias(config.width, config.mlp)),
      fc2_(without_bias(config.mlp, config.width)) {
  add_child("0.norm1", norm1_);
  add_child("0.norm2", norm2_);
  add_child("0.to_q", to_q_);
  add_child("0.to_kv", to_kv_);
  add_child("0.to_out", to_out_);
  add_child("1.0", norm_);
  add_child("1.1", fc1_);
  add_child("1.3", fc2_);
}

at::Tensor Resampler::Block::forward(const at::Tensor& x, const at::Tensor& latents) const {
  const auto heads = [this](const at::Tensor& packed) {
    return packed.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [B, heads, T or N + T, 64]
  };
  const at::Tensor asking = norm2_.forward(latents);
  const std::vector<at::Tensor> kv =
      to_kv_.forward(at::cat({norm1_.forward(x), asking}, 1)).chunk(2, -1);
  const at::Tensor attended =
      at::scaled_dot_product_attention(heads(to_q_.forward(asking)), heads(kv[0]), heads(kv[1]));
  const at::Tensor h = latents + to_out_.forward(attended.transpose(1, 2).flatten(2));
  return tapped(h + fc2_.forward(at::gelu(fc1_.forward(norm_.forward(h)))));
}

Resampler::Resampler(const ModelConfig& config)
    : latents_{.shape = {1, config.unet.ip_adapter.tokens, config.unet.ip_adapter.width},
               .init = started(config.unet.ip_adapter.width),
               .value = {},
               .grad = {}},
      proj_in_(config.unet.ip_adapter.channels, config.unet.ip_adapter.width,
               started(config.unet.ip_adapter.channels)),
      proj_out_(config.unet.ip_adapter.width, config.text_channels,
                started(config.unet.ip_adapter.width)),
      norm_out_(config.text_channels) {
  add_parameter("latents", latents_);
  add_child("proj_in", proj_in_);
  for (int64_t i = 0; i < config.unet.ip_adapter.depth; ++i) {
    layers_.push_back(std::make_unique<Block>(config.unet.ip_adapter));
    add_child("layers." + std::to_string(i), *layers_.back());
  }
  add_child("proj_out", proj_out_);
  add_child("norm_out", norm_out_);
}

at::Tensor Resampler::forward(const at::Tensor& image) const {
  const at::Tensor x = proj_in_.forward(image);  // [B, N, W]
  at::Tensor latents = ops::with_gradient(latents_.value, latents_.grad)
                           .to(x.scalar_type())
                           .expand({x.size(0), -1, -1});  // [B, T, W]
  for (const auto& layer : layers_) {
    latents = layer->forward(x, latents);
  }
  return tapped(norm_out_.forward(proj_out_.forward(latents)));
}

IpAdapter::Reader::Reader(int64_t text_channels, int64_t channels)
    : to_k_ip(without_bias(text_channels, channels)),
      to_v_ip(without_bias(text_channels, channels)) {}

IpAdapter::IpAdapter(const ModelConfig& config) {
  if (config.unet.ip_adapter.reads_places()) {
    add_child("image_proj", resampler.emplace(config));
  } else {
    add_child("image_proj", image_proj.emplace(config));
  }
  for (const TextAttention& attention : text_attentions(config.unet)) {
    readers_.push_back(std::make_unique<Reader>(config.text_channels, attention.channels));
    const std::string number = std::to_string(attention.number);
    add_child(number + ".to_k_ip", readers_.back()->to_k_ip);
    add_child(number + ".to_v_ip", readers_.back()->to_v_ip);
  }
}

std::vector<at::Tensor> IpAdapter::forward(const at::Tensor& image) const {
  const at::Tensor tokens =
      resampler ? resampler->forward(image) : image_proj->forward(image);  // [B, T, D]
  std::vector<at::Tensor> pairs;
  for (const auto& reader : readers_) {
    pairs.push_back(
        at::cat({reader->to_k_ip.forward(tokens), reader->to_v_ip.forward(tokens)}, -1));
  }
  return pairs;
}

}  // namespace kinora::models
