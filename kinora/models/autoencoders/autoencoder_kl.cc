#include "kinora/models/autoencoders/autoencoder_kl.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/attention.h"

namespace kinora::models {
namespace {

/// Of an activation, that wide heads may take.
constexpr int64_t kFreeCopies = 4;

nn::ConvShape halving(int64_t channels) {
  return {.in_channels = channels,
          .out_channels = channels,
          .kernel = {3, 3},
          .stride = {2, 2},
          .padding = {{0, 1}, {0, 1}}};
}

const AutoencoderKlConfig& checked(const AutoencoderKlConfig& config) {
  KINORA_CHECK(!config.block_out_channels.empty() && config.layers_per_block > 0 &&
                   config.latent_channels > 0,
               kConfig, "[autoencoder] levels, layers and channels must be there, got ",
               config.block_out_channels.size(), " levels of ", config.layers_per_block,
               " layers, ", config.latent_channels, " latent channels");
  KINORA_CHECK(config.in_channels == 1 || config.in_channels == kPixelChannels, kConfig,
               "[autoencoder] in_channels must be 1 (grey) or ", kPixelChannels, ", got ",
               config.in_channels);
  for (const std::vector<bool>& attention : {config.encoder_attention, config.decoder_attention}) {
    KINORA_CHECK(attention.empty() || attention.size() == config.block_out_channels.size(), kConfig,
                 "[autoencoder] each of ", config.block_out_channels.size(),
                 " levels must attend or not, got ", attention.size());
  }
  return config;
}

/// [B, 3, H, W] -> [B, 1, H, W]: the weights of ITU-R BT.601, as Pillow's mode L and diffusers'.
at::Tensor luma(const at::Tensor& pixels) {
  const auto channel = [&pixels](int64_t c) { return pixels.narrow(1, c, 1); };
  return 0.299 * channel(0) + 0.587 * channel(1) + 0.114 * channel(2);
}

}  // namespace

// ---- parts ----

KlResnet::KlResnet(int64_t in_channels, int64_t out_channels, int64_t groups)
    : norm1(groups, in_channels),
      conv1(nn::ConvShape::same(in_channels, out_channels, 3)),
      norm2(groups, out_channels),
      conv2(nn::ConvShape::same(out_channels, out_channels, 3)) {
  add_child("norm1", norm1);
  add_child("conv1", conv1);
  add_child("norm2", norm2);
  add_child("conv2", conv2);
  if (in_channels != out_channels) {
    conv_shortcut.emplace(nn::ConvShape::same(in_channels, out_channels, 1));
    add_child("conv_shortcut", *conv_shortcut);
  }
}

nn::Bands KlResnet::forward(nn::Bands x) const {
  // Before conv1, which is the last that needs x then.
  nn::Bands residual = conv_shortcut ? convolve(x, *conv_shortcut) : x;
  nn::Bands h = norm_silu_convolve(std::move(x), norm1, conv1);
  return norm_silu_convolve(std::move(h), norm2, conv2, std::move(residual));
}

void KlResnet::add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const {
  const int64_t in = conv1.shape().in_channels;
  const int64_t out = conv1.shape().out_channels;
  const int64_t shortcut = conv_shortcut ? out : 0;
  if (conv_shortcut) {
    needs.push_back({.stored = place.bytes(in + out),
                     .kept = 0,  // x, as conv1's
                     .work = place.scratch(in + out),
                     .gathered_work = place.bytes(in + out) + place.scratch(in + out),
                     .rows = place.rows,
                     .halo = 0});
  }
  // Where x is not the residual it is overwritten and freed on the way; else a band is there
  // normalised, too. With gradients a band is gathered with its halo, normalised, padded where the
  // picture ends.
  needs.push_back(
      {.stored = place.bytes(conv_shortcut ? std::max(in, out) + out : in + out),
       .kept = place.bytes(in),
       .work = place.bytes(conv_shortcut ? out : in) + place.scratch(in + out),
       .gathered_work = place.bytes((conv_shortcut ? 5 : 3) * in + out) + place.scratch(in + out),
       .rows = place.rows,
       .halo = 1});
  // The second adds the residual, which is freed beside it.
  needs.push_back({.stored = place.bytes(2 * out),
                   .kept = place.bytes(out + shortcut),
                   .work = place.bytes(out) + place.scratch(2 * out),
                   .gathered_work = place.bytes(6 * out) + place.scratch(2 * out),
                   .rows = place.rows,
                   .halo = 1});
}

KlAttention::KlAttention(int64_t channels, int64_t groups)
    : group_norm(groups, channels),
      to_q(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_k(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_v(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_out(channels, channels, nn::Init::xavier_uniform(channels, channels)) {
  add_child("group_norm", group_norm);
  add_child("to_q", to_q);
  add_child("to_k", to_k);
  add_child("to_v", to_v);
  add_child("to_out.0", to_out);
}

at::Tensor KlAttention::forward(const at::Tensor& x) const {
  const at::Tensor tokens = group_norm.forward(x).flatten(2).transpose(1, 2);  // [B, H W, C]
  const auto heads = [&](const nn::Linear& linear) { return linear.forward(tokens).unsqueeze(1); };
  const at::Tensor attended =
      ops::wide_head_attention(heads(to_q), heads(to_k), heads(to_v),
                               kFreeCopies * static_cast<int64_t>(x.nbytes()))
          .squeeze(1);
  return tapped(to_out.forward(attended).transpose(1, 2).view(x.sizes()) + x);
}

nn::BandNeed KlAttention::need(const BandPlace& place) const {
  // x in bands and joined, normalised, queries, keys, values, attended; and what wide heads take,
  // or projected and the sum
  constexpr int64_t kTensors = 7 + kFreeCopies;
  return whole_need(place, kTensors * group_norm.weight.shape[0]);
}

nn::Bands KlAttention::over(const nn::Bands& x) const {
  return nn::over_whole(x, [this](const at::Tensor& whole) { return forward(whole); });
}

KlMiddle::KlMiddle(int64_t channels, int64_t groups, bool has_attention)
    : first(channels, channels, groups), second(channels, channels, groups) {
  add_child("resnets.0", first);
  if (has_attention) {
    attention.emplace(channels, groups);
    add_child("attentions.0", *attention);
  }
  add_child("resnets.1", second);
}

nn::Bands KlMiddle::forward(nn::Bands x) const {
  x = first.forward(std::move(x));
  if (attention) {
    x = attention->over(x);
  }
  return second.forward(std::move(x));
}

void KlMiddle::add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const {
  first.add_needs(place, needs);
  if (attention) {
    needs.push_back(attention->need(place));
  }
  second.add_needs(place, needs);
}

KlLevel::KlLevel(int64_t in_channels, int64_t out_channels, int64_t groups, int64_t num_resnets,
                 bool attends, Next next)
    : next_(next) {
  for (int64_t i = 0; i < num_resnets; ++i) {
    resnets.push_back(
        std::make_unique<KlResnet>(i == 0 ? in_channels : out_channels, out_channels, groups));
    add_child("resnets." + std::to_string(i), *resnets.back());
    if (attends) {
      attentions.push_back(std::make_unique<KlAttention>(out_channels, groups));
      add_child("attentions." + std::to_string(i), *attentions.back());
    }
  }
  if (next == Next::kHalf) {
    resample.emplace(halving(out_channels));
    add_child("downsamplers.0.conv", *resample);
  } else if (next == Next::kDouble) {
    resample.emplace(nn::ConvShape::same(out_channels, out_channels, 3));
    add_child("upsamplers.0.conv", *resample);
  }
}

nn::Bands KlLevel::forward(nn::Bands x) const {
  for (size_t i = 0; i < resnets.size(); ++i) {
    x = resnets[i]->forward(std::move(x));
    if (!attentions.empty()) {
      x = attentions[i]->over(x);
    }
  }
  if (!resample) {
    return x;
  }
  // The smaller activation is cut anew.
  return next_ == Next::kDouble ? convolve_doubled(std::move(x).next_stage(), *resample)
                                : convolve(std::move(x), *resample).next_stage();
}

void KlLevel::add_needs(BandPlace& place, std::vector<nn::BandStage>& stages) const {
  for (size_t i = 0; i < resnets.size(); ++i) {
    resnets[i]->add_needs(place, stages.back().needs);
    if (!attentions.empty()) {
      stages.back().needs.push_back(attentions[i]->need(place));
    }
  }
  if (!resample) {
    return;
  }
  const bool doubles = next_ == Next::kDouble;
  const int64_t channels = resample->shape().out_channels;
  const BandPlace next = doubles ? place.doubled() : place.halved();
  const int64_t in = place.bytes(channels);
  const int64_t out = next.bytes(channels);
  const int64_t scratch = place.scratch(channels) + next.scratch(channels);
  // Doubling computes even rows of the result beside the whole of a band's, then odd ones.
  const nn::BandNeed convolution = {.stored = in + out,
                                    .kept = in,
                                    .work = in + (doubles ? out / 2 : out) + scratch,
                                    .gathered_work = 2 * (in + out) + scratch,
                                    .rows = place.rows,
                                    .halo = 1};
  const BandPlace cut = doubles ? place : next;
  const nn::BandStage begun = {.needs = {{.stored = 2 * cut.bytes(channels),
                                          .kept = 0,
                                          .work = cut.bytes(channels),
                                          .rows = cut.rows,
                                          .halo = 0}},
                               .units = doubles ? place.rows : stages.back().units};
  if (!doubles) {
    stages.back().needs.push_back(convolution);
  }
  stages.push_back(begun);
  if (doubles) {
    stages.back().needs.push_back(convolution);
  }
  place = next;
}

KlHalf::KlHalf(const AutoencoderKlConfig& config, Kind kind, int64_t out_channels)
    : conv_in(
          nn::ConvShape::same(kind == Kind::kEncoder ? config.in_channels : config.latent_channels,
                              kind == Kind::kEncoder ? config.block_out_channels.front()
                                                     : config.block_out_channels.back(),
                              3)),
      mid_block(config.block_out_channels.back(), config.norm_num_groups,
                config.mid_block_add_attention),
      conv_norm_out(config.norm_num_groups, kind == Kind::kEncoder
                                                ? config.block_out_channels.back()
                                                : config.block_out_channels.front()),
      conv_out(nn::ConvShape::same(conv_norm_out.weight.shape[0], out_channels, 3)),
      kind_(kind) {
  const bool encodes = kind == Kind::kEncoder;
  std::vector<int64_t> channels = config.block_out_channels;
  std::vector<bool> attention = encodes ? config.encoder_attention : config.decoder_attention;
  attention.resize(channels.size());
  if (!encodes) {
    std::reverse(channels.begin(), channels.end());
    std::reverse(attention.begin(), attention.end());
  }
  add_child("conv_in", conv_in);
  const std::string name = encodes ? "down_blocks." : "up_blocks.";
  for (size_t i = 0; i < channels.size(); ++i) {
    const auto next = encodes ? KlLevel::Next::kHalf : KlLevel::Next::kDouble;
    levels.push_back(
        std::make_unique<KlLevel>(channels[i == 0 ? 0 : i - 1], channels[i], config.norm_num_groups,
                                  config.layers_per_block + (encodes ? 0 : 1), attention[i],
                                  i + 1 == channels.size() ? KlLevel::Next::kNone : next));
    add_child(name + std::to_string(i), *levels.back());
  }
  add_child("mid_block", mid_block);
  add_child("conv_norm_out", conv_norm_out);
  add_child("conv_out", conv_out);
}

nn::Bands KlHalf::forward(nn::Bands x) const {
  x = convolve(std::move(x), conv_in);
  if (kind_ == Kind::kDecoder) {
    x = mid_block.forward(std::move(x));
  }
  for (const auto& level : levels) {
    x = level->forward(std::move(x));
  }
  if (kind_ == Kind::kEncoder) {
    x = mid_block.forward(std::move(x));
  }
  return norm_silu_convolve(std::move(x), conv_norm_out, conv_out);
}

std::vector<nn::BandStage> KlHalf::stages(BandPlace place, int64_t units) const {
  std::vector<nn::BandStage> stages = {{.needs = {}, .units = units}};
  const auto add = [&](const nn::Conv& conv) {
    const int64_t channels = conv.shape().in_channels + conv.shape().out_channels;
    const int64_t bytes = place.bytes(channels);
    stages.back().needs.push_back({.stored = bytes,
                                   .kept = place.bytes(conv.shape().in_channels),
                                   .work = 2 * bytes + place.scratch(channels),
                                   .rows = place.rows,
                                   .halo = 1});
  };
  add(conv_in);
  if (kind_ == Kind::kDecoder) {
    mid_block.add_needs(place, stages.back().needs);
  }
  for (const auto& level : levels) {
    level->add_needs(place, stages);
  }
  if (kind_ == Kind::kEncoder) {
    mid_block.add_needs(place, stages.back().needs);
  }
  add(conv_out);
  return stages;
}

at::Tensor KlHalf::run(const at::Tensor& x, const nn::BandLimits& limits) const {
  const bool encodes = kind_ == Kind::kEncoder;
  const int64_t unit = encodes ? int64_t{1} << (levels.size() - 1) : 1;
  const at::Tensor seen = encodes && conv_in.shape().in_channels == 1 ? luma(x) : x;
  return run_in_bands(seen, stages(place_of(seen), seen.size(2) / unit), limits,
                      [this](nn::Bands bands) { return forward(std::move(bands)); });
}

// ---- the whole ----

LatentSpace kl_space(const AutoencoderKlConfig& config, int64_t channels) {
  LatentSpace space;
  space.channels = channels;
  space.compression = int64_t{1} << (checked(config).block_out_channels.size() - 1);
  space.scale = config.scale;
  space.shift = config.shift;
  return space;
}

AutoencoderKl::AutoencoderKl(const AutoencoderKlConfig& config)
    : ImageAutoencoder(kl_space(config, config.latent_channels)),
      encoder(config, KlHalf::Kind::kEncoder, 2 * config.latent_channels),
      decoder(config, KlHalf::Kind::kDecoder, config.in_channels) {
  const int64_t channels = config.latent_channels;
  add_child("encoder", encoder);
  add_child("decoder", decoder);
  if (config.use_quant_conv) {
    quant_conv.emplace(nn::ConvShape::same(2 * channels, 2 * channels, 1));
    add_child("quant_conv", *quant_conv);
  }
  if (config.use_post_quant_conv) {
    post_quant_conv.emplace(nn::ConvShape::same(channels, channels, 1));
    add_child("post_quant_conv", *post_quant_conv);
  }
}

LatentMoments AutoencoderKl::encode_images(const at::Tensor& pixels) {
  at::Tensor moments = encoder.run(pixels, limits());
  if (quant_conv) {
    moments = quant_conv->forward(moments);
  }
  const auto parts = moments.to(c10::promoteTypes(moments.scalar_type(), at::kFloat)).chunk(2, 1);
  return {.mean = parts[0],
          .std = at::exp(parts[1].clamp(kLeastLogVariance, kMostLogVariance) * 0.5)};
}

at::Tensor AutoencoderKl::decode_images(const at::Tensor& raw) {
  return decoder.run(post_quant_conv ? post_quant_conv->forward(raw) : raw, limits());
}

}  // namespace kinora::models
