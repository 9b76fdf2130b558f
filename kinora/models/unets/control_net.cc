#include "kinora/models/unets/control_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

#include <string>

namespace kinora::models {
namespace {

void start_at_zero(nn::Conv& conv) {
  conv.weight.init = nn::Init::zero();
  conv.bias.init = nn::Init::zero();
}

nn::ConvShape of_place(int64_t channels) {
  return nn::ConvShape::same(channels, channels, 1);
}

at::Tensor images(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

/// The convolutions that a picture goes through.
std::vector<nn::ConvShape> picture_shapes(const UnetConfig& config) {
  const std::vector<int64_t>& widths = config.control_channels;
  std::vector<nn::ConvShape> shapes = {unet_conv(3, widths.front())};
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    shapes.push_back(unet_conv(widths[i], widths[i]));
    shapes.push_back(unet_conv(widths[i], widths[i + 1]));
    shapes.back().stride = {2, 2};
  }
  shapes.push_back(unet_conv(widths.back(), config.channels.front()));
  return shapes;
}

}  // namespace

ControlNet::Picture::Picture(const UnetConfig& config) {
  const std::vector<nn::ConvShape> shapes = picture_shapes(config);
  for (size_t i = 0; i < shapes.size(); ++i) {
    convs_.push_back(std::make_unique<nn::Conv>(shapes[i]));
    const bool is_last = i + 1 == shapes.size();
    add_child(i == 0    ? "conv_in"
              : is_last ? "conv_out"
                        : "blocks." + std::to_string(i - 1),
              *convs_.back());
  }
  start_at_zero(*convs_.back());
}

at::Tensor ControlNet::Picture::forward(const at::Tensor& control) const {
  at::Tensor h = images(control);
  for (size_t i = 0; i + 1 < convs_.size(); ++i) {
    h = at::silu(convs_[i]->forward(h));
  }
  return tapped(convs_.back()->forward(h));
}

ControlNet::ControlNet(const ModelConfig& config, double scale)
    : conv_in(unet_conv(config.in_channels, config.unet.channels.front())),
      time_embedding(config.unet.channels.front(), config.unet.time_width()),
      controlnet_cond_embedding(config.unet),
      down_blocks(make_way_down(config)),
      mid_block(config.unet, config.text_channels),
      controlnet_mid_block(of_place(config.unet.channels.back())),
      scale_(scale) {
  add_child("conv_in", conv_in);
  add_child("time_embedding", time_embedding);
  if (config.pooled_channels > 0) {
    add_embedding.emplace(config.unet.added_channels(config.pooled_channels),
                          config.unet.time_width());
    add_child("add_embedding", *add_embedding);
  }
  add_child("controlnet_cond_embedding", controlnet_cond_embedding);
  for (size_t level = 0; level < down_blocks.size(); ++level) {
    add_child("down_blocks." + std::to_string(level), *down_blocks[level]);
  }
  for (const int64_t width : widths_left(config.unet)) {
    const size_t number = controlnet_down_blocks.size();
    controlnet_down_blocks.push_back(std::make_unique<nn::Conv>(of_place(width)));
    start_at_zero(*controlnet_down_blocks.back());
    add_child("controlnet_down_blocks." + std::to_string(number), *controlnet_down_blocks.back());
  }
  add_child("mid_block", mid_block);
  add_child("controlnet_mid_block", controlnet_mid_block);
  start_at_zero(controlnet_mid_block);
}

ControlResiduals ControlNet::forward(const at::Tensor& x_t, const at::Tensor& t,
                                     const at::Tensor& control, const UnetReads& reads,
                                     UnetBlocks& blocks) const {
  const at::Tensor sinusoids = unet_sinusoids(t, conv_in.shape().out_channels);
  at::Tensor time = time_embedding.forward(sinusoids);
  if (add_embedding) {
    time = time + add_embedding->forward(reads.sizes);
  }
  const UnetReads own{.time = at::silu(time), .text = reads.text, .lengths = reads.lengths};
  const at::Tensor h = conv_in.forward(images(x_t)) + controlnet_cond_embedding.forward(control);
  ControlResiduals residuals{.left = go_down(down_blocks, h, own, blocks), .middle = {}};
  const at::Tensor middle = blocks
                                .run({residuals.left.back()}, own,
                                     [this](const at::Tensor& x, const UnetReads& here) {
                                       return std::vector{mid_block.forward(x, here)};
                                     })
                                .front();
  for (size_t i = 0; i < residuals.left.size(); ++i) {
    residuals.left[i] = scale_ * controlnet_down_blocks[i]->forward(residuals.left[i]);
  }
  residuals.middle = scale_ * controlnet_mid_block.forward(middle);
  return residuals;
}

std::vector<UnetTransformer*> ControlNet::transformers() {
  std::vector<UnetTransformer*> transformers;
  for (const auto& level : down_blocks) {
    for (size_t unit = 0; unit < level->num_units(); ++unit) {
      transformers.push_back(level->unit(unit).transformer());
    }
  }
  transformers.push_back(mid_block.first.transformer());
  return transformers;
}

std::vector<UnetBlockNames> ControlNet::names_of_blocks(const std::string& path) const {
  std::vector<UnetBlockNames> names;
  for (size_t level = 0; level < down_blocks.size(); ++level) {
    for (UnetBlockNames& block : block_names(path + "down_blocks." + std::to_string(level),
                                             *down_blocks[level], ".downsamplers.")) {
      names.push_back(std::move(block));
    }
  }
  names.push_back({path + "mid_block", {path + "mid_block."}});
  return names;
}

int64_t ControlNet::compression(const UnetConfig& config) {
  return int64_t{1} << (config.control_channels.size() - 1);
}

double ControlNet::picture_macs(const UnetConfig& config, double places) {
  double sum = 0.0;
  double pixels = places * static_cast<double>(compression(config) * compression(config));
  for (const nn::ConvShape& shape : picture_shapes(config)) {
    pixels /= shape.stride.empty() ? 1.0 : static_cast<double>(shape.stride[0] * shape.stride[1]);
    sum += 9.0 * pixels * static_cast<double>(shape.in_channels * shape.out_channels);
  }
  return sum;
}

}  // namespace kinora::models
