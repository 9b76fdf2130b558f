#include "kinora/models/unets/unet.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/models/unets/unet_blocks.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/fp8.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, C channels of a level, H W its rows and columns, L text tokens, D their width.

namespace kinora::models {
namespace {

constexpr double kWhite = 255.0;

double as_real(int64_t value) {
  return static_cast<double>(value);
}

/// Rows or columns of a level.
int64_t halved(int64_t size, int64_t level) {
  return (size + (int64_t{1} << level) - 1) >> level;
}

/// Widths of what a level on the way up is given: what comes from below and what the way down left
/// there.
std::vector<int64_t> inputs_up(const UnetConfig& own, int64_t level) {
  const int64_t below = own.channels[std::min(level + 1, own.levels() - 1)];
  std::vector<int64_t> inputs;
  for (int64_t unit = 0; unit <= own.resnets; ++unit) {
    const int64_t from = unit == 0 ? below : own.channels[level];
    const int64_t beside =
        own.channels[unit == own.resnets ? std::max<int64_t>(level - 1, 0) : level];
    inputs.push_back(from + beside);
  }
  return inputs;
}

/// Multiply-accumulates of the parts at one level of H W places.
struct LevelMacs {
  double places;
  double text_tokens;
  double text_channels;
  double time_width;
  UnetAttends attends;

  [[nodiscard]] double conv(int64_t in, int64_t out, int64_t side = 3) const {
    return places * as_real(in * out * side * side);
  }
  [[nodiscard]] double resnet(int64_t in, int64_t out) const {
    return conv(in, out) + conv(out, out) + (in == out ? 0.0 : conv(in, out, 1)) +
           time_width * as_real(out);
  }
  /// Of places to each other.
  [[nodiscard]] double self_attention(int64_t channels) const {
    const double c = as_real(channels);
    return 4 * places * c * c + 2 * places * places * c;
  }
  /// The blocks of transformers alone.
  [[nodiscard]] double transformer_blocks(int64_t channels, int64_t depth) const {
    if (attends == UnetAttends::kPlaces) {
      return 0.0;
    }
    const double c = as_real(channels);
    const double self = self_attention(channels);
    const double cross =
        2 * places * c * c + 2 * text_tokens * text_channels * c + 2 * places * text_tokens * c;
    const double mlp = 12 * places * c * c;
    return as_real(depth) * (self + cross + mlp);
  }
  /// All that attends.
  [[nodiscard]] double attention(int64_t channels, int64_t depth) const {
    const double c = as_real(channels);
    return depth == 0 ? 0.0
           : attends == UnetAttends::kPlaces
               ? self_attention(channels)
               : 2 * places * c * c + transformer_blocks(channels, depth);
  }
};

LevelMacs macs_at(const ModelConfig& config, int64_t level) {
  const UnetConfig& own = config.unet;
  return {as_real(halved(config.height, level) * halved(config.width, level)),
          own.classes == UnetClasses::kNone ? as_real(config.text_tokens) : 1.0,
          as_real(config.text_channels), as_real((own.scales_by_time ? 2 : 1) * own.time_width()),
          own.attends};
}

void check_lists(const UnetConfig& own) {
  const size_t levels = own.channels.size();
  KINORA_CHECK(levels > 0 && own.resnets > 0, kConfig,
               "[unet] model.unet.channels and resnets must be given, got ", levels, " levels of ",
               own.resnets, ". Hint: set them, or a model.name such as UNet-SD1");
  KINORA_CHECK(own.depths.size() == levels && own.heads.size() == levels, kConfig,
               "[unet] model.unet.depths and heads must have an entry for each of ", levels,
               " levels of channels, got ", own.depths.size(), " and ", own.heads.size());
  for (size_t level = 0; level < levels; ++level) {
    KINORA_CHECK(own.channels[level] % own.norm_groups == 0 && own.channels[level] % 2 == 0,
                 kConfig, "[unet] model.unet.channels must be even multiples of norm_groups = ",
                 own.norm_groups, ", got ", own.channels[level]);
    KINORA_CHECK(own.channels[level] % own.heads[level] == 0, kConfig,
                 "[unet] model.unet.heads must divide the channels of their level, got ",
                 own.heads[level], " for ", own.channels[level]);
  }
  KINORA_CHECK(
      own.channels.front() / 2 > own.time_shift, kConfig,
      "[unet] model.unet.channels must begin with 4 or more where model.unet.time_shift is "
      "1, got ",
      own.channels.front());
}

/// Of a U-Net that attends to places alone.
void check_places(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  KINORA_CHECK(own.classes != UnetClasses::kToken, kConfig,
               "[unet] model.unet.classes must be none or time with model.unet.attends=places, "
               "where nothing reads a token, got token");
  KINORA_CHECK(config.text_channels == 0, kConfig,
               "[unet] model.text_channels must be 0 with model.unet.attends=places, got ",
               config.text_channels);
  const int64_t deepest = std::max(std::ranges::max(own.depths), own.middle_depth);
  KINORA_CHECK(deepest <= 1, kConfig,
               "[unet] model.unet.depths and middle_depth must be 0 or 1 with "
               "model.unet.attends=places, got ",
               deepest);
  KINORA_CHECK(own.controls == 0, kConfig,
               "[unet] ControlNets (model.unet.controls) are there for U-Nets that are told "
               "captions, got ",
               own.controls);
}

void check_classes(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  const bool reads_labels = family_of(config).conditions.labels;
  const bool is_of_places = own.attends == UnetAttends::kPlaces;
  KINORA_CHECK(reads_labels || !is_of_places, kConfig,
               "[unet] model.unet.attends must be captions for ", name_of(config),
               ", got places. Hint: model.architecture=class_unet");
  if (is_of_places) {
    check_places(config);
    return;
  }
  KINORA_CHECK(!own.scales_by_time && !own.resizes_in_blocks, kConfig,
               "[unet] model.unet.scales_by_time and resizes_in_blocks must be false but with "
               "model.unet.attends=places, got true");
  KINORA_CHECK(reads_labels == (own.classes != UnetClasses::kNone), kConfig,
               "[unet] model.unet.classes must be ", reads_labels ? "token or time" : "none",
               " for ", name_of(config), ", got ", to_string(own.classes),
               ". Hint: model.architecture=class_unet is told classes, unet captions");
  if (!reads_labels) {
    return;
  }
  KINORA_CHECK(config.text_channels > 0, kConfig,
               "[unet] model.text_channels, the width of what attention to captions reads, must be "
               "positive, got 0");
  KINORA_CHECK(own.controls == 0, kConfig,
               "[unet] ControlNets (model.unet.controls) are there for U-Nets that are told "
               "captions, not classes, got ",
               own.controls);
}

template <typename T>
void fill(std::vector<T>& list, const std::vector<T>& published) {
  if (list.empty()) {
    list = published;
  }
}

}  // namespace

Unet::Unet(const ModelConfig& config)
    : Model(config),
      null_text(config.takes_text() && config.pooled_channels == 0
                    ? at::zeros({config.text_tokens, config.text_channels}, at::kFloat)
                    : at::Tensor()),
      conv_in(unet_conv(config.in_channels + config.unet.channels_beside(config.in_channels),
                        config.unet.channels.front())),
      time_embedding(config.unet.channels.front(), config.unet.time_width()),
      conv_norm_out(config.unet.norm_groups, config.unet.channels.front(),
                    config.unet.norm_epsilon),
      conv_out(unet_conv(config.unet.channels.front(), config.out_channels())) {
  const UnetConfig& own = config.unet;
  const int64_t last = own.levels() - 1;
  if (config.text_encoder.any()) {
    if (config.text_encoder.kind == TextEncoderSize::Kind::kClip) {
      clip.emplace(config.text_encoder);
      add_child("text_encoder", *clip);
      null_ids = at::zeros({config.text_tokens}, at::kFloat);
      add_buffer("null_tokens", null_ids);
    } else {
      text_encoder.emplace(config);
      add_child("text_encoder", *text_encoder);
    }
  }
  if (null_text.defined()) {
    add_buffer("null_text", null_text);
  }
  add_child("conv_in", conv_in);
  add_child("time_embedding", time_embedding);
  if (config.pooled_channels > 0) {
    add_embedding.emplace(config.unet.added_channels(config.pooled_channels), own.time_width());
    add_child("add_embedding", *add_embedding);
  }
  if (own.classes == UnetClasses::kToken) {
    class_token.emplace(config.num_classes, config.text_channels);
    add_child("class_token", *class_token);
  } else if (own.classes == UnetClasses::kTime) {
    class_embedding.emplace(config.num_classes, own.time_width());
    add_child("class_embedding", *class_embedding);
  }
  for (int64_t i = 0; i < own.controls; ++i) {
    const double scale = own.control_scales.empty() ? 1.0 : own.control_scales[i];
    controlnets.push_back(std::make_unique<ControlNet>(config, scale));
    add_child("controlnets." + std::to_string(i), *controlnets.back());
  }
  if (own.ip_adapter.any()) {
    ip_adapter.emplace(config);
    add_child("ip_adapter", *ip_adapter);
  }
  down_blocks = make_way_down(config);
  for (size_t level = 0; level < down_blocks.size(); ++level) {
    add_child("down_blocks." + std::to_string(level), *down_blocks[level]);
  }
  mid_block = std::make_unique<UnetMiddle>(own, config.text_channels);
  add_child("mid_block", *mid_block);
  for (int64_t level = last; level >= 0; --level) {
    up_blocks.push_back(std::make_unique<UnetLevel>(
        inputs_up(own, level), own.channels[level], own, config.text_channels, own.heads[level],
        own.depths[level], level == 0 ? UnetLevel::Next::kNone : UnetLevel::Next::kDouble));
    add_child("up_blocks." + std::to_string(last - level), *up_blocks.back());
  }
  add_child("conv_norm_out", conv_norm_out);
  add_child("conv_out", conv_out);
  conv_out.weight.init = nn::Init::zero();
  conv_out.bias.init = nn::Init::zero();
  make_buckets();
  place_layers();
}

void Unet::place_layers() {
  for (const auto& net : controlnets) {
    std::ranges::copy(net->transformers(), std::back_inserter(of_blocks_));
  }
  const auto take = [this](UnetUnit& unit) {
    resnets_.push_back(&unit.resnet);
    layers_.push_back({.bucket = first_block_ + std::ssize(of_blocks_),
                       .resnets = {&unit.resnet},
                       .transformer = unit.attention ? unit.transformer() : nullptr});
    of_blocks_.push_back(unit.transformer());
    if (unit.attention) {
      transformers_.push_back(unit.transformer());
    }
  };
  const auto take_level = [this, &take](UnetLevel& level) {
    for (size_t unit = 0; unit < level.num_units(); ++unit) {
      take(level.unit(unit));
    }
    if (UnetResnet* block = level.resize_block()) {
      resnets_.push_back(block);
      layers_.back().resnets.push_back(block);
    }
  };
  const auto doubles_by_conv = [](UnetLevel& level) {
    return level.changes_size() && level.resize_block() == nullptr;
  };
  std::ranges::for_each(down_blocks, [&](const auto& level) { take_level(*level); });
  take(mid_block->first);
  resnets_.push_back(&mid_block->second);
  layers_.back().resnets.push_back(&mid_block->second);
  std::ranges::for_each(up_blocks, [&](const auto& level) {
    take_level(*level);
    layers_.back().doubles = doubles_by_conv(*level) ? level.get() : nullptr;
  });
  int64_t channel = 0;
  for (UnetResnet* resnet : resnets_) {
    resnet->time_channel = channel;
    channel += resnet->time_emb_proj.weight.shape[0];
  }
  size_t first = 0;
  size_t block = 0;
  for (UnetTransformer* transformer : transformers_) {
    transformer->first_prepared = first;
    transformer->first_image = block;
    first += 1 + transformer->transformer_blocks.size();
    block += transformer->transformer_blocks.size();
  }
  for (const auto& level : up_blocks) {
    level->prepared_doubling = first;
    first += doubles_by_conv(*level) ? 1 : 0;
  }
}

void Unet::make_buckets() {
  std::vector<UnetBlockNames> blocks;
  const auto add = [&blocks](std::vector<UnetBlockNames> names) {
    std::ranges::move(names, std::back_inserter(blocks));
  };
  for (size_t i = 0; i < controlnets.size(); ++i) {
    add(controlnets[i]->names_of_blocks("controlnets." + std::to_string(i) + "."));
  }
  for (size_t i = 0; i < down_blocks.size(); ++i) {
    add(block_names("down_blocks." + std::to_string(i), *down_blocks[i], ".downsamplers."));
  }
  blocks.push_back({"mid_block", {"mid_block."}});
  for (size_t i = 0; i < up_blocks.size(); ++i) {
    add(block_names("up_blocks." + std::to_string(i), *up_blocks[i], ".upsamplers."));
  }

  nn::BucketSpec embedders{.name = "embedders", .parameters = {}, .fp32_island = true};
  nn::BucketSpec input{.name = "input", .parameters = {}};  // and what stands beside blocks
  nn::BucketSpec output{.name = "output", .parameters = {}};
  std::vector<nn::BucketSpec> of_blocks;
  for (const UnetBlockNames& block : blocks) {
    of_blocks.push_back({.name = block.name, .parameters = {}, .ring = "blocks", .is_block = true});
  }
  for (const auto& [path, parameter] : named_parameters()) {
    const auto owner = std::ranges::find_if(blocks, [&path = path](const UnetBlockNames& block) {
      return std::ranges::any_of(
          block.prefixes, [&path](const std::string& prefix) { return path.starts_with(prefix); });
    });
    if (owner != blocks.end()) {
      const auto number = static_cast<size_t>(owner - blocks.begin());
      parameter->layer = static_cast<int64_t>(number) + 1;
      of_blocks[number].parameters.push_back(path);
    } else if (parameter->fp32_island) {
      embedders.parameters.push_back(path);
    } else if (path.starts_with("conv_in.") || path.starts_with("controlnets.") ||
               path.starts_with(kIpAdapterPrefix)) {
      input.parameters.push_back(path);
    } else {
      parameter->layer = static_cast<int64_t>(blocks.size()) + 1;
      output.parameters.push_back(path);
    }
  }
  buckets_ = {std::move(embedders), std::move(input)};
  first_block_ = static_cast<int64_t>(buckets_.size());
  std::ranges::move(of_blocks, std::back_inserter(buckets_));
  buckets_.push_back(std::move(output));
}

void Unet::to_device(const at::Device& device) {
  if (text_encoder) {
    text_encoder->to_device(device);
  }
  if (null_text.defined()) {
    null_text = null_text.to(device);
  }
  if (clip) {
    null_ids = null_ids.to(device);
  }
}

void Unet::use_fast_path(std::shared_ptr<ops::BlockKernels> kernels, ops::Recompute level) {
  kernels_ = std::move(kernels);
  set_kernels(kernels_.get());
  for (UnetTransformer* transformer : of_blocks_) {
    if (transformer != nullptr) {
      transformer->recompute = level;
    }
  }
  is_adapted_ = std::ranges::any_of(named_weight_layers(), [](const nn::NamedWeightLayer& named) {
    return named.layer->update() != nullptr;
  });
}

int64_t Unet::num_fast_linears() const {
  int64_t count = 0;
  for (UnetTransformer* transformer : of_blocks_) {
    count += transformer == nullptr ? 0 : transformer->num_fp8_products();
  }
  return count;
}

std::string Unet::what_stays_16_bit() {
  std::vector<std::string> stays;
  for (size_t i = 0; i < of_blocks_.size(); ++i) {
    if (of_blocks_[i] != nullptr) {
      std::ranges::move(
          of_blocks_[i]->what_stays(buckets_[static_cast<size_t>(first_block_) + i].name),
          std::back_inserter(stays));
    }
  }
  std::string text = "convolutions, and linears outside of the transformers' blocks";
  constexpr size_t kNamed = 4;
  for (size_t i = 0; i < std::min(stays.size(), kNamed); ++i) {
    text += "; " + stays[i];
  }
  return stays.size() <= kNamed ? text
                                : text + "; and " + std::to_string(stays.size() - kNamed) + " more";
}

void Unet::begin_step() {
  if (kernels_ == nullptr || is_tapped() || kernels_->fp8() == nullptr) {
    return;
  }
  ops::Fp8& fp8 = *kernels_->fp8();
  fp8.begin_step();
  int64_t number = 0;
  for (UnetTransformer* transformer : of_blocks_) {
    if (transformer == nullptr) {
      continue;
    }
    for (const auto& of_block : transformer->number_products(number)) {
      number += std::ssize(of_block);
      fp8.know(of_block);
    }
  }
}

void Unet::resolve(ModelConfig& config, const ModelConfig& published) {
  UnetConfig& own = config.unet;
  const UnetConfig& given = published.unet;
  fill(own.channels, given.channels);
  fill(own.depths, given.depths);
  fill(own.heads, given.heads);
  own.resnets = own.resnets == 0 ? given.resnets : own.resnets;
  own.middle_depth = own.middle_depth == 0 ? given.middle_depth : own.middle_depth;
  own.linear_projection |= given.linear_projection;
  own.size_channels = own.size_channels == 0 ? given.size_channels : own.size_channels;
  own.reads_score |= given.reads_score;
  own.classes = own.classes == UnetClasses::kNone ? given.classes : own.classes;
  own.attends = own.attends == UnetAttends::kCaptions ? given.attends : own.attends;
  if (own.is_unconditional()) {
    config.num_classes = 1;  // all samples are of one
    config.class_names.clear();
  }
  check_own_keys(config);
  KINORA_CHECK(config.transformer == TransformerConfig{}, kConfig, "[model] ",
               family_of(config).name,
               " has no use for keys of transformers, such as model.depth, hidden, heads, patch. "
               "Hint: leave them out; its own begin with model.unet");
  check_lists(own);
  const bool reads_sizes = config.pooled_channels > 0;
  KINORA_CHECK(reads_sizes ? own.size_channels > 0 && own.size_channels % 2 == 0
                           : own.size_channels == 0 && !own.reads_score,
               kConfig, "[unet] model.unet.size_channels must be ",
               reads_sizes ? "even and above 0 with" : "0, and reads_score false, without",
               " model.pooled_channels, got ", own.size_channels);
  KINORA_CHECK(own.control_scales.empty() || std::ssize(own.control_scales) == own.controls,
               kConfig, "[unet] model.unet.control_scales must have an entry for each of ",
               own.controls, " ControlNets, got ", own.control_scales.size());
  KINORA_CHECK(!own.control_channels.empty(), kConfig,
               "[unet] model.unet.control_channels must have at least one width, got none");
  check_classes(config);
  const int64_t least = int64_t{1} << (own.levels() - 1);
  KINORA_CHECK(config.height >= least && config.width >= least, kConfig,
               "[unet] model.height and width must be at least ", least, " for ", own.levels(),
               " levels, got ", config.height, " x ", config.width);
}

ModelShape Unet::shape(const ModelConfig& config) {
  // Tokens are the places of the finest level that attends.
  const UnetConfig& own = config.unet;
  int64_t level = 0;
  while (level + 1 < own.levels() && own.depths[level] == 0) {
    ++level;
  }
  return {.blocks = own.units(),
          .width = own.channels[level],
          .heads = own.heads[level],
          .frames = 1,
          .rows = halved(config.height, level),
          .columns = halved(config.width, level),
          .is_undivided = true,
          .input = own.input,
          .channels_beside = own.channels_beside(config.in_channels),
          .controls = own.controls,
          .reads_image_prompt = own.ip_adapter.any()};
}

double Unet::macs(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  const double time_width = as_real(own.time_width());
  const auto at_level = [&](int64_t level) { return macs_at(config, level); };
  const double of_time = as_real(own.channels.front()) * time_width + time_width * time_width;
  const auto way = [&](int64_t level, const std::vector<int64_t>& inputs) {
    double sum = 0.0;
    for (const int64_t in : inputs) {
      sum += at_level(level).resnet(in, own.channels[level]) +
             at_level(level).attention(own.channels[level], own.depths[level]);
    }
    return sum;
  };
  const LevelMacs deepest = at_level(own.levels() - 1);
  const int64_t last = own.channels.back();
  double down = 2 * deepest.resnet(last, last) + deepest.attention(last, own.middle_depth);
  double up = 0.0;
  double of_places = deepest.conv(last, last, 1);  // the convolutions behind a ControlNet
  for (int64_t level = 0; level < own.levels(); ++level) {
    const int64_t channels = own.channels[level];
    down += way(level, inputs_down(own, level));
    up += way(level, inputs_up(own, level));
    const int64_t given = own.channels[std::max<int64_t>(level - 1, 0)];
    of_places += as_real(own.resnets) * at_level(level).conv(channels, channels, 1) +
                 at_level(level).conv(given, given, 1);
    if (level + 1 < own.levels()) {
      const int64_t below = own.channels[level + 1];
      const auto resize = [&own](const LevelMacs& at, int64_t width) {
        return own.resizes_in_blocks ? at.resnet(width, width) : at.conv(width, width);
      };
      down += resize(at_level(level + 1), channels);
      up += resize(at_level(level), below);
    }
  }
  const LevelMacs finest = at_level(0);
  const int64_t first = own.channels.front();
  const double of_sizes =
      config.pooled_channels > 0
          ? time_width * (as_real(config.unet.added_channels(config.pooled_channels)) + time_width)
          : 0.0;
  const double unet = of_time + of_sizes + down + up +
                      finest.conv(config.in_channels + own.channels_beside(config.in_channels) +
                                      config.out_channels(),
                                  first);
  const double control = of_time + of_sizes + down + of_places +
                         finest.conv(config.in_channels, first) +
                         ControlNet::picture_macs(own, finest.places);
  return unet + as_real(own.controls) * control;
}

double Unet::fp8_macs(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  double of_way = 0.0;  // of a unit of each level
  for (int64_t level = 0; level < own.levels(); ++level) {
    of_way += macs_at(config, level).transformer_blocks(own.channels[level], own.depths[level]);
  }
  const double middle =
      macs_at(config, own.levels() - 1).transformer_blocks(own.channels.back(), own.middle_depth);
  const double down = as_real(own.resnets) * of_way + middle;
  return down + as_real(own.resnets + 1) * of_way + as_real(own.controls) * down;
}

void Unet::check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions) const {
  KINORA_CHECK(x_t.dim() == 4 && x_t.size(1) == config().in_channels, kShape,
               "[unet] x_t must be [B, ", config().in_channels, ", H, W], got ", x_t.sizes());
  const int64_t batch = x_t.size(0);
  if (const int64_t more = config().unet.channels_beside(config().in_channels); more > 0) {
    const std::vector<int64_t> shape = {batch, more, x_t.size(2), x_t.size(3)};
    KINORA_CHECK(conditions.beside.defined() && conditions.beside.sizes() == shape, kShape,
                 "[unet] ", name_of(config()), " needs what lies beside x_t, ", shape, ", got ",
                 conditions.beside.defined() ? conditions.beside.sizes() : at::IntArrayRef());
  }
  if (!controlnets.empty()) {
    const int64_t pixels = ControlNet::compression(config().unet);
    const std::vector<int64_t> shape = {batch, 3 * config().unet.controls, x_t.size(2) * pixels,
                                        x_t.size(3) * pixels};
    KINORA_CHECK(conditions.control.defined() && conditions.control.sizes() == shape, kShape,
                 "[unet] ", name_of(config()), " needs pictures for its ControlNets, ", shape,
                 ", got ",
                 conditions.control.defined() ? conditions.control.sizes() : at::IntArrayRef());
  }
  if (ip_adapter) {
    const IpAdapterConfig& its = config().unet.ip_adapter;
    const at::Tensor& image = conditions.image_prompt;
    KINORA_CHECK(image.defined() && image.dim() == (its.reads_places() ? 3 : 2) &&
                     image.size(0) == batch && image.size(-1) == its.channels,
                 kShape, "[unet] ", name_of(config()), " needs what prompts its IP-Adapter, [",
                 batch, its.reads_places() ? ", places, " : ", ", its.channels, "], got ",
                 image.defined() ? image.sizes() : at::IntArrayRef());
  }
  KINORA_CHECK(t.dim() == 1 && t.size(0) == batch && t.scalar_type() == at::kFloat, kShape,
               "[unet] t must be float32 [", batch, "], got ", t.scalar_type(), " ", t.sizes());
  if (!reads_labels()) {
    check_captions(conditions, batch);
  } else if (!config().unet.is_unconditional()) {
    check_labels(conditions.labels, batch);
  }
}

void Unet::check_labels(const at::Tensor& labels, int64_t batch) const {
  KINORA_CHECK(labels.defined() && labels.sizes() == at::IntArrayRef(batch) &&
                   labels.scalar_type() == at::kLong,
               kShape, "[unet] ", name_of(config()), " needs labels, int64 [", batch, "], got ",
               labels.defined() ? labels.sizes() : at::IntArrayRef());
}

void Unet::check_captions(const diffusion::Conditions& conditions, int64_t batch) const {
  const bool reads = has_text_encoder();
  const at::Tensor& text = told(conditions);
  KINORA_CHECK(
      text.defined() && text.size(0) == batch && text.dim() == (reads ? 2 : 3) &&
          text.size(1) <= config().text_tokens && (reads || text.size(2) == config().text_channels),
      kShape, "[unet] ", name_of(config()), " needs ", reads ? "tokens, [" : "text, [", batch,
      ", up to ", config().text_tokens, reads ? "" : ", " + std::to_string(config().text_channels),
      "], got ", text.defined() ? text.sizes() : at::IntArrayRef());
  KINORA_CHECK(!reads || conditions.text_lengths.defined(), kShape, "[unet] ", name_of(config()),
               " has a text encoder and needs text_lengths");
  if (!add_embedding) {
    return;
  }
  const auto check = [&](const char* name, const at::Tensor& got, std::vector<int64_t> sizes) {
    KINORA_CHECK(got.defined() && got.sizes() == at::IntArrayRef(sizes), kShape, "[unet] ",
                 name_of(config()), " needs ", name, ", ", at::IntArrayRef(sizes), ", got ",
                 got.defined() ? got.sizes() : at::IntArrayRef());
  };
  check("pooled", conditions.pooled, {batch, config().pooled_channels});
  check("original_size", conditions.original_size, {batch, 2});
  check("crop", conditions.crop, {batch, 2});
  if (config().unet.reads_score) {
    check("score", conditions.score, {batch});
  } else {
    check("height", conditions.height, {batch});
    check("width", conditions.width, {batch});
  }
}

at::Tensor Unet::embed_time(const at::Tensor& t) const {
  const UnetConfig& own = config().unet;
  return time_embedding.forward(unet_sinusoids(t * config().time_scale, own.channels.front(),
                                               own.time_shift, own.sines_first));
}

at::Tensor Unet::with_added(const at::Tensor& time, const diffusion::Conditions& conditions) const {
  if (add_embedding) {
    return time + add_embedding->forward(read_sizes(conditions));
  }
  return class_embedding ? time + class_embedding->forward(conditions.labels) : time;
}

at::Tensor Unet::read_text(const diffusion::Conditions& conditions) const {
  if (config().unet.attends == UnetAttends::kPlaces) {
    return {};
  }
  if (class_token) {
    return class_token->forward(conditions.labels).unsqueeze(1);
  }
  if (class_embedding) {
    return at::zeros({conditions.labels.size(0), 1, config().text_channels},
                     conditions.labels.options().dtype(at::kFloat));
  }
  const at::Tensor& null = conditions.null_text;
  if (clip) {
    const at::Tensor& tokens = conditions.tokens;
    const at::Tensor nothing = null_ids.narrow(0, 0, tokens.size(1)).to(at::kLong);
    return clip->embed(null.defined() ? at::where(null.view({-1, 1}), nothing, tokens) : tokens);
  }
  const at::Tensor states =
      text_encoder ? text_encoder->embed_captions(conditions.tokens, conditions.text_lengths)
                   : conditions.text;
  if (!null.defined()) {
    return states;
  }
  const at::Tensor is_null = null.view({-1, 1, 1});
  return null_text.defined()
             ? at::where(is_null, null_text.narrow(0, 0, states.size(1)).to(states.scalar_type()),
                         states)
             : states.masked_fill(is_null, 0.0);
}

at::Tensor Unet::text_lengths(const diffusion::Conditions& conditions) const {
  at::Tensor lengths = conditions.text_lengths;
  if (clip || !lengths.defined()) {
    return {};
  }
  const int64_t all = tokens_told(conditions);
  if (conditions.null_text.defined()) {
    lengths = at::where(conditions.null_text, at::full_like(lengths, all), lengths);
  }
  // A text without tokens has one: what lies there is zeros or the padding's state.
  return lengths.clamp(1, all).to(at::kInt).contiguous();
}

void Unet::zero_text_gradients() {
  if (!text_encoder) {  // those of a clip are islands, which others zero
    return;
  }
  std::vector<at::Tensor> gradients;
  for (const auto& [path, parameter] : text_encoder->named_parameters()) {
    if (parameter->grad.defined()) {
      gradients.push_back(parameter->grad);
    }
  }
  ops::zero_gradients(gradients);
}

UnetReads Unet::reads(const at::Tensor& t, const diffusion::Conditions& conditions,
                      const diffusion::Prepared& prepared) const {
  UnetReads reads{.lengths = text_lengths(conditions),
                  .prepared_time = prepared.of_times,
                  .prepared_texts = prepared.of_texts};
  if (prepared.of_texts.empty() || !controlnets.empty()) {
    reads.text = read_text(conditions);
  }
  if (!prepared.of_times.defined()) {
    reads.time = at::silu(with_added(embed_time(t), conditions));
  }
  if (add_embedding && !controlnets.empty()) {
    reads.sizes = read_sizes(conditions);
  }
  if (ip_adapter) {
    reads.image_pairs = prepared.of_image_prompts.empty()
                            ? ip_adapter->forward(conditions.image_prompt)
                            : prepared.of_image_prompts;
    reads.image_scale = config().unet.ip_adapter.scale;
  }
  return reads;
}

UnetReads Unet::prepared_reads(const at::Tensor& times,
                               const diffusion::Conditions& conditions) const {
  const int64_t batch = told(conditions).size(0);
  UnetReads reads;
  const UnetResnet& last = *resnets_.back();
  const int64_t channels = last.time_channel + last.time_emb_proj.weight.shape[0];
  if (times.size(0) * batch * channels * static_cast<int64_t>(sizeof(float)) <=
      diffusion::Prepared::kMaxBytes) {
    // [S, 1, E], or [S, B, E] where samples add to it.
    reads.time = at::silu(with_added(embed_time(times).unsqueeze(1), conditions));
  }
  int64_t width = 0;  // of keys and values
  for (const UnetTransformer* transformer : transformers_) {
    width += static_cast<int64_t>(transformer->transformer_blocks.size()) * 2 *
             transformer->proj_in.weight.shape[0];
  }
  if (width > 0 && batch * tokens_told(conditions) * width * static_cast<int64_t>(sizeof(float)) <=
                       diffusion::Prepared::kMaxBytes) {
    reads.text = read_text(conditions);
  }
  return reads;
}

diffusion::Prepared Unet::prepare(const at::Tensor& times,
                                  const diffusion::Conditions& conditions) {
  // Without a text predict() says what is missing.
  if (kernels_ == nullptr || is_tapped() || !told(conditions).defined() ||
      (add_embedding && !conditions.pooled.defined())) {
    return {};
  }
  const int64_t num_times = times.size(0);
  UnetReads reads = prepared_reads(times, conditions);
  const int64_t of_each = reads.time.defined() ? reads.time.size(1) : 0;  // times a step
  reads.time = reads.time.defined() ? reads.time.flatten(0, 1) : at::Tensor();
  std::vector<at::Tensor> projected;  // [S, B C] of each residual block
  std::vector<at::Tensor> texts;      // of each transformer
  std::vector<at::Tensor> phases;     // of weights that double
  for (const UnetBlockLayers& block : layers_) {
    with_bucket(block.bucket, [&] {
      for (size_t i = 0; i < block.resnets.size() && reads.time.defined(); ++i) {
        projected.push_back(block.resnets[i]
                                ->projected_time(reads, reads.time.size(0))
                                .view({num_times, of_each, -1})
                                .expand({num_times, told(conditions).size(0), -1})
                                .reshape({num_times, -1}));
      }
      if (block.transformer != nullptr && reads.text.defined()) {
        std::vector<at::Tensor> own = block.transformer->prepare(reads.text);
        reads.text = own.empty() ? at::Tensor() : reads.text;
        std::ranges::move(own, std::back_inserter(texts));
      }
      if (block.doubles != nullptr && reads.text.defined()) {
        phases.push_back(block.doubles->prepare_doubling());
      }
    });
  }
  diffusion::Prepared prepared;
  if (!projected.empty()) {
    prepared.of_times = at::cat(projected, 1);
  }
  if (reads.text.defined()) {
    prepared.of_texts = std::move(texts);
    std::ranges::move(phases, std::back_inserter(prepared.of_texts));
  }
  if (ip_adapter && conditions.image_prompt.defined()) {
    prepared.of_image_prompts = ip_adapter->forward(conditions.image_prompt);
  }
  return prepared;
}

at::Tensor Unet::read_sizes(const diffusion::Conditions& conditions) const {
  const UnetConfig& own = config().unet;
  std::vector<at::Tensor> numbers = {conditions.original_size, conditions.crop};
  if (own.reads_score) {
    numbers.push_back(conditions.score.unsqueeze(1));
  } else {
    numbers.push_back(at::stack({conditions.height, conditions.width}, 1));
  }
  const at::Tensor sizes = unet_sinusoids(at::cat(numbers, 1), own.size_channels).flatten(1);
  const at::Tensor& null =
      conditions.null_pooled.defined() ? conditions.null_pooled : conditions.null_text;
  const at::Tensor pooled =
      null.defined() ? conditions.pooled.masked_fill(null.unsqueeze(1), 0.0) : conditions.pooled;
  return at::cat({pooled, sizes}, 1);
}

ControlResiduals Unet::control(const at::Tensor& x_t, const at::Tensor& t,
                               const at::Tensor& pictures, const UnetReads& reads,
                               UnetBlocks& blocks) const {
  ControlResiduals sum;
  for (size_t i = 0; i < controlnets.size(); ++i) {
    at::Tensor own = pictures.narrow(1, 3 * static_cast<int64_t>(i), 3);
    own = own.scalar_type() == at::kByte ? own.to(at::kFloat) / kWhite : own;
    ControlResiduals more = controlnets[i]->forward(x_t, t, own, reads, blocks);
    if (i == 0) {
      sum = std::move(more);
      continue;
    }
    for (size_t j = 0; j < sum.left.size(); ++j) {
      sum.left[j] = sum.left[j] + more.left[j];
    }
    sum.middle = sum.middle + more.middle;
  }
  return sum;
}

at::Tensor Unet::predict(const at::Tensor& x_t, const at::Tensor& t,
                         const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const bool overwrites = may_overwrite() && pass.overwrite;
  if (overwrites && pass.starts_step) {
    zero_text_gradients();
  }
  UnetReads reads = this->reads(t, conditions, pass.prepared);
  reads.new_weights = pass.new_weights;
  // What is in no ring adds up over the passes of a step.
  const ops::OverwriteGradients at_both_ends(overwrites && pass.starts_step);
  UnetBlocks blocks(hook(), first_block_, recompute_blocks(), overwrites);
  const ControlResiduals added =
      control(x_t, t * config().time_scale, conditions.control, reads, blocks);
  const bool is_plain = config().unet.input == ShownInput::kPlain;
  const at::Tensor shown = is_plain ? x_t : at::cat({x_t, conditions.beside}, 1);
  std::vector<at::Tensor> left =
      go_down(down_blocks, conv_in.forward(shown.contiguous(at::MemoryFormat::ChannelsLast)), reads,
              blocks);
  at::Tensor h = blocks
                     .run({left.back()}, reads,
                          [this](const at::Tensor& x, const UnetReads& here) {
                            return std::vector{mid_block->forward(x, here)};
                          })
                     .front();
  if (added.middle.defined()) {
    for (size_t i = 0; i < left.size(); ++i) {
      left[i] = left[i] + added.left[i];
    }
    h = h + added.middle;
  }
  for (const auto& level : up_blocks) {
    for (size_t unit = 0; unit < level->num_units(); ++unit) {
      const at::Tensor beside = std::move(left.back());
      left.pop_back();
      const bool resamples = unit + 1 == level->num_units() && level->changes_size();
      const int64_t rows = resamples ? left.back().size(2) : 0;
      const int64_t columns = resamples ? left.back().size(3) : 0;
      h = blocks
              .run({h, beside}, reads,
                   [&level = *level, unit, resamples, rows, columns](const at::Tensor& x,
                                                                     const UnetReads& here) {
                     const at::Tensor result = level.forward(unit, x, here);
                     return std::vector{resamples ? level.doubled(result, rows, columns, here)
                                                  : result};
                   })
              .front();
    }
  }
  return tapped(conv_out.forward(conv_norm_out.forward_silu(h)).to(at::kFloat).contiguous());
}

}  // namespace kinora::models
