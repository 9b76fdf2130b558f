#include "kinora/models/autoencoders/autoencoder_tiny.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>

#include <string>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::models {
namespace {

constexpr int64_t kPoolGroups = 4;
constexpr int64_t kPoolRatio = 4;
constexpr double kPoolEpsilon = 1e-5;
// Latents come softly within +- this (TAESD's first layer).
constexpr double kMagnitude = 3.0;

at::Tensor rectified(const at::Tensor& x) {
  return at::relu(x);
}

nn::ConvShape without_bias(nn::ConvShape shape) {
  shape.has_bias = false;
  return shape;
}

nn::ConvShape halving_conv(int64_t channels) {
  nn::ConvShape shape = without_bias(nn::ConvShape::same(channels, channels, 3));
  shape.stride = {2, 2};
  return shape;
}

LatentSpace space_of(const AutoencoderTinyConfig& config) {
  KINORA_CHECK(!config.num_encoder_blocks.empty() &&
                   config.num_encoder_blocks.size() == config.num_decoder_blocks.size(),
               kConfig, "[autoencoder] encoder and decoder must have as many levels, got ",
               config.num_encoder_blocks.size(), " and ", config.num_decoder_blocks.size());
  LatentSpace space;
  space.channels = config.latent_channels;
  space.compression = int64_t{1} << (config.num_encoder_blocks.size() - 1);
  space.scale = {config.scaling_factor};
  return space;
}

/// Of a convolution that adds nothing to what it stores.
nn::BandNeed conv_need(const BandPlace& place, int64_t in_channels, int64_t out_bytes) {
  const int64_t in = place.bytes(in_channels);
  return {.stored = in + out_bytes,
          .kept = in,
          .work = in + 2 * out_bytes,
          .rows = place.rows,
          .halo = 1};
}

}  // namespace

TinyBlock::Pool::Pool(int64_t channels)
    : widen(without_bias(nn::ConvShape::same(channels, kPoolRatio * channels, 1))),
      norm(kPoolGroups, kPoolRatio * channels, kPoolEpsilon),
      narrow(without_bias(nn::ConvShape::same(kPoolRatio * channels, channels, 1))) {}

TinyBlock::TinyBlock(int64_t channels, bool pools)
    : conv0(nn::ConvShape::same(channels, channels, 3)),
      conv2(nn::ConvShape::same(channels, channels, 3)),
      conv4(nn::ConvShape::same(channels, channels, 3)) {
  add_child("conv.0", conv0);
  add_child("conv.2", conv2);
  add_child("conv.4", conv4);
  if (pools) {
    pool.emplace(channels);
    add_child("pool.0", pool->widen);
    add_child("pool.1", pool->norm);
    add_child("pool.3", pool->narrow);
  }
}

nn::Bands TinyBlock::forward(nn::Bands x) const {
  if (pool) {
    nn::Bands wide = convolve(x, pool->widen);
    const at::Tensor sums = nn::band_sums(wide, pool->norm);
    const int64_t elements = wide.group_elements(kPoolGroups);
    x = over_both(std::move(wide), std::move(x), {0, 0},
                  [this, elements](const nn::Rows& rows, const std::vector<at::Tensor>& also) {
                    const at::Tensor normed = pool->norm.apply(rows.x, also[0], elements);
                    return pool->narrow.forward(at::relu(normed)) + also[1];
                  },
                  {sums});
  }
  nn::Bands y = convolve(x, conv0, rectified);
  y = convolve(std::move(y), conv2, rectified);
  return convolve(
      std::move(y), conv4, std::move(x),
      [](const at::Tensor& band, const at::Tensor& other) { return at::relu(band + other); });
}

void TinyBlock::add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const {
  const int64_t channels = conv0.shape().in_channels;
  const int64_t bytes = place.bytes(channels);
  if (pool) {
    needs.push_back({.stored = (2 + kPoolRatio) * bytes,
                     .kept = (1 + kPoolRatio) * bytes,
                     .work = (2 + 2 * kPoolRatio) * bytes,
                     .rows = place.rows,
                     .halo = 0});
  }
  nn::BandNeed need = conv_need(place, channels, bytes);
  need.stored += bytes;  // x, which is added at last
  needs.insert(needs.end(), 3, need);
}

TinyHalf::TinyHalf(const AutoencoderTinyConfig& config, Kind kind) {
  if (kind == Kind::kEncoder) {
    add_encoder(config);
  } else {
    add_decoder(config);
  }
}

void TinyHalf::add(size_t number, Layer::Kind kind, const nn::ConvShape& shape) {
  layers_.push_back({kind, std::make_unique<nn::Conv>(shape), nullptr});
  add_child("layers." + std::to_string(number), *layers_.back().conv);
}

size_t TinyHalf::add_blocks(size_t number, int64_t count, int64_t channels, bool pools) {
  for (int64_t i = 0; i < count; ++i) {
    layers_.push_back({Layer::Kind::kBlock, nullptr, std::make_unique<TinyBlock>(channels, pools)});
    add_child("layers." + std::to_string(number++), *layers_.back().block);
  }
  return number;
}

void TinyHalf::add_encoder(const AutoencoderTinyConfig& config) {
  const size_t num_levels = config.num_encoder_blocks.size();
  size_t number = 0;
  for (size_t level = 0; level < num_levels; ++level) {
    if (level == 0) {
      add(number++, Layer::Kind::kConv, nn::ConvShape::same(kPixelChannels, config.channels, 3));
    } else {
      add(number++, Layer::Kind::kConv, halving_conv(config.channels));
    }
    number = add_blocks(number, config.num_encoder_blocks[level], config.channels,
                        config.pools && level + 1 == num_levels);
  }
  add(number, Layer::Kind::kConv, nn::ConvShape::same(config.channels, config.latent_channels, 3));
}

void TinyHalf::add_decoder(const AutoencoderTinyConfig& config) {
  const size_t num_levels = config.num_decoder_blocks.size();
  add(0, Layer::Kind::kConvRelu, nn::ConvShape::same(config.latent_channels, config.channels, 3));
  size_t number = 2;  // layers without weights have numbers, too
  for (size_t level = 0; level < num_levels; ++level) {
    number = add_blocks(number, config.num_decoder_blocks[level], config.channels,
                        config.pools && level == 0);
    if (level + 1 < num_levels) {
      add(number + 1, Layer::Kind::kDouble,
          without_bias(nn::ConvShape::same(config.channels, config.channels, 3)));
      number += 2;
    }
  }
  add(number, Layer::Kind::kConv, nn::ConvShape::same(config.channels, kPixelChannels, 3));
}

nn::Bands TinyHalf::forward(nn::Bands x) const {
  for (const Layer& layer : layers_) {
    switch (layer.kind) {
      case Layer::Kind::kConv:
        x = convolve(std::move(x), *layer.conv);
        break;
      case Layer::Kind::kConvRelu:
        x = convolve(std::move(x), *layer.conv, rectified);
        break;
      case Layer::Kind::kDouble:
        x = convolve_doubled(std::move(x), *layer.conv);
        break;
      case Layer::Kind::kBlock:
        x = layer.block->forward(std::move(x));
        break;
    }
  }
  return x;
}

std::vector<nn::BandNeed> TinyHalf::needs(BandPlace place) const {
  std::vector<nn::BandNeed> needs;
  for (const Layer& layer : layers_) {
    if (layer.kind == Layer::Kind::kBlock) {
      layer.block->add_needs(place, needs);
      continue;
    }
    const nn::ConvShape& shape = layer.conv->shape();
    BandPlace next = place;
    if (layer.kind == Layer::Kind::kDouble) {
      next = place.doubled();
    } else if (shape.stride[0] == 2) {
      next = place.halved();
    }
    needs.push_back(conv_need(place, shape.in_channels, next.bytes(shape.out_channels)));
    place = next;
  }
  return needs;
}

AutoencoderTiny::AutoencoderTiny(const AutoencoderTinyConfig& config)
    : ImageAutoencoder(space_of(config)),
      encoder(config, TinyHalf::Kind::kEncoder),
      decoder(config, TinyHalf::Kind::kDecoder) {
  add_child("encoder", encoder);
  add_child("decoder", decoder);
}

LatentMoments AutoencoderTiny::encode_images(const at::Tensor& pixels) {
  return {.mean = run(encoder, (pixels + 1.0) * 0.5, space().compression), .std = {}};
}

at::Tensor AutoencoderTiny::decode_images(const at::Tensor& raw) {
  return run(decoder, at::tanh(raw / kMagnitude) * kMagnitude, 1) * 2.0 - 1.0;
}

at::Tensor AutoencoderTiny::run(const TinyHalf& half, const at::Tensor& x, int64_t unit) const {
  return run_in_bands(x, {{.needs = half.needs(place_of(x)), .units = x.size(2) / unit}}, limits(),
                      [&half](nn::Bands bands) { return half.forward(std::move(bands)); });
}

}  // namespace kinora::models
