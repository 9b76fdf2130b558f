#include "kinora/models/unets/unet.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/run_block.h"
#include "kinora/models/transformers/transformer_family.h"

// Shapes: B batch, C channels of a level, H W its rows and columns, L text tokens, D their width.

namespace kinora::models {
namespace {

double as_real(int64_t value) {
  return static_cast<double>(value);
}

/// Rows or columns of a level.
int64_t halved(int64_t size, int64_t level) {
  return (size + (int64_t{1} << level) - 1) >> level;
}

/// Widths of what a level on the way down is given, unit by unit.
std::vector<int64_t> inputs_down(const UnetConfig& own, int64_t level) {
  std::vector<int64_t> inputs(static_cast<size_t>(own.resnets), own.channels[level]);
  inputs.front() = own.channels[std::max<int64_t>(level - 1, 0)];
  return inputs;
}

/// The same on the way up: what comes from below and what the way down left there.
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

  [[nodiscard]] double conv(int64_t in, int64_t out, int64_t side = 3) const {
    return places * as_real(in * out * side * side);
  }
  [[nodiscard]] double resnet(int64_t in, int64_t out) const {
    return conv(in, out) + conv(out, out) + (in == out ? 0.0 : conv(in, out, 1)) +
           time_width * as_real(out);
  }
  [[nodiscard]] double transformer(int64_t channels, int64_t depth) const {
    const double c = as_real(channels);
    const double self = 4 * places * c * c + 2 * places * places * c;
    const double cross =
        2 * places * c * c + 2 * text_tokens * text_channels * c + 2 * places * text_tokens * c;
    const double mlp = 12 * places * c * c;
    return depth == 0 ? 0.0 : 2 * places * c * c + as_real(depth) * (self + cross + mlp);
  }
};

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
}

/// The first one or the last one.
nn::ConvShape edge_conv(int64_t in_channels, int64_t out_channels) {
  nn::ConvShape shape = nn::ConvShape::same(in_channels, out_channels, 3);
  shape.channels_last = true;
  return shape;
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
      null_text(at::zeros({config.text_tokens, config.text_channels}, at::kFloat)),
      conv_in(edge_conv(config.in_channels, config.unet.channels.front())),
      time_embedding(config.unet.channels.front(), config.unet.time_width()),
      conv_norm_out(config.unet.norm_groups, config.unet.channels.front(),
                    config.unet.norm_epsilon),
      conv_out(edge_conv(config.unet.channels.front(), config.out_channels())) {
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
  add_buffer("null_text", null_text);
  add_child("conv_in", conv_in);
  add_child("time_embedding", time_embedding);
  for (int64_t level = 0; level <= last; ++level) {
    down_blocks.push_back(std::make_unique<UnetLevel>(
        inputs_down(own, level), own.channels[level], own, config.text_channels, own.heads[level],
        own.depths[level], level == last ? UnetLevel::Next::kNone : UnetLevel::Next::kHalf));
    add_child("down_blocks." + std::to_string(level), *down_blocks.back());
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
  const auto take = [this](UnetUnit& unit) {
    resnets_.push_back(&unit.resnet);
    if (unit.attention) {
      transformers_.push_back(&*unit.attention);
    }
  };
  const auto take_level = [&take](UnetLevel& level) {
    for (size_t unit = 0; unit < level.num_units(); ++unit) {
      take(level.unit(unit));
    }
  };
  std::ranges::for_each(down_blocks, [&](const auto& level) { take_level(*level); });
  take(mid_block->first);
  resnets_.push_back(&mid_block->second);
  std::ranges::for_each(up_blocks, [&](const auto& level) { take_level(*level); });
  int64_t channel = 0;
  for (UnetResnet* resnet : resnets_) {
    resnet->place.channel = channel;
    channel += resnet->time_emb_proj.weight.shape[0];
  }
  size_t first = 0;
  for (UnetTransformer* transformer : transformers_) {
    transformer->place.first = first;
    first += 1 + transformer->transformer_blocks.size();
  }
}

void Unet::make_buckets() {
  struct Block {
    std::string name;
    std::vector<std::string> prefixes;
  };
  std::vector<Block> blocks;
  const auto add_level = [&](const std::string& path, const UnetLevel& level,
                             const char* resample) {
    for (size_t unit = 0; unit < level.num_units(); ++unit) {
      const std::string number = "." + std::to_string(unit);
      blocks.push_back(
          {path + number, {path + ".resnets" + number + ".", path + ".attentions" + number + "."}});
    }
    blocks.back().prefixes.push_back(path + resample);
  };
  for (size_t i = 0; i < down_blocks.size(); ++i) {
    add_level("down_blocks." + std::to_string(i), *down_blocks[i], ".downsamplers.");
  }
  blocks.push_back({"mid_block", {"mid_block."}});
  for (size_t i = 0; i < up_blocks.size(); ++i) {
    add_level("up_blocks." + std::to_string(i), *up_blocks[i], ".upsamplers.");
  }

  nn::BucketSpec embedders{.name = "embedders", .parameters = {}, .fp32_island = true};
  nn::BucketSpec input{.name = "input", .parameters = {}};
  nn::BucketSpec output{.name = "output", .parameters = {}};
  std::vector<nn::BucketSpec> of_blocks;
  for (const Block& block : blocks) {
    of_blocks.push_back({.name = block.name, .parameters = {}, .ring = "blocks", .is_block = true});
  }
  for (const auto& [path, parameter] : named_parameters()) {
    const auto owner = std::ranges::find_if(blocks, [&path = path](const Block& block) {
      return std::ranges::any_of(
          block.prefixes, [&path](const std::string& prefix) { return path.starts_with(prefix); });
    });
    if (owner != blocks.end()) {
      const auto number = static_cast<size_t>(owner - blocks.begin());
      parameter->layer = static_cast<int64_t>(number) + 1;
      of_blocks[number].parameters.push_back(path);
    } else if (parameter->fp32_island) {
      embedders.parameters.push_back(path);
    } else if (path.starts_with("conv_in.")) {
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
  null_text = null_text.to(device);
  if (clip) {
    null_ids = null_ids.to(device);
  }
}

void Unet::use_fast_path(std::shared_ptr<ops::BlockKernels> kernels, ops::Recompute level) {
  kernels_ = std::move(kernels);
  set_kernels(kernels_.get());
  for (UnetTransformer* transformer : transformers_) {
    transformer->recompute = level;
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
  check_own_keys(config);
  KINORA_CHECK(config.transformer == TransformerConfig{}, kConfig, "[model] ",
               family_of(config).name,
               " has no use for keys of transformers, such as model.depth, hidden, heads, patch. "
               "Hint: leave them out; its own begin with model.unet");
  check_lists(own);
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
          .mlp_width = 4 * own.channels[level],
          .frames = 1,
          .rows = halved(config.height, level),
          .columns = halved(config.width, level),
          .is_undivided = true};
}

double Unet::macs(const ModelConfig& config) {
  const UnetConfig& own = config.unet;
  const double time_width = as_real(own.time_width());
  const auto at_level = [&](int64_t level) {
    return LevelMacs{as_real(halved(config.height, level) * halved(config.width, level)),
                     as_real(config.text_tokens), as_real(config.text_channels), time_width};
  };
  double sum = as_real(own.channels.front()) * time_width + time_width * time_width +
               at_level(0).conv(config.in_channels + config.out_channels(), own.channels.front());
  for (int64_t level = 0; level < own.levels(); ++level) {
    const LevelMacs here = at_level(level);
    const int64_t channels = own.channels[level];
    for (const auto& inputs : {inputs_down(own, level), inputs_up(own, level)}) {
      for (const int64_t in : inputs) {
        sum += here.resnet(in, channels) + here.transformer(channels, own.depths[level]);
      }
    }
    if (level + 1 < own.levels()) {
      sum += at_level(level + 1).conv(channels, channels);                 // halving
      sum += here.conv(own.channels[level + 1], own.channels[level + 1]);  // doubling
    }
  }
  const LevelMacs middle = at_level(own.levels() - 1);
  const int64_t channels = own.channels.back();
  return sum + 2 * middle.resnet(channels, channels) +
         middle.transformer(channels, own.middle_depth);
}

void Unet::check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions) const {
  KINORA_CHECK(x_t.dim() == 4 && x_t.size(1) == config().in_channels, kShape,
               "[unet] x_t must be [B, ", config().in_channels, ", H, W], got ", x_t.sizes());
  const int64_t batch = x_t.size(0);
  KINORA_CHECK(t.dim() == 1 && t.size(0) == batch && t.scalar_type() == at::kFloat, kShape,
               "[unet] t must be float32 [", batch, "], got ", t.scalar_type(), " ", t.sizes());
  const bool reads = has_text_encoder();
  const at::Tensor& text = reads ? conditions.tokens : conditions.text;
  KINORA_CHECK(
      text.defined() && text.size(0) == batch && text.dim() == (reads ? 2 : 3) &&
          text.size(1) <= config().text_tokens && (reads || text.size(2) == config().text_channels),
      kShape, "[unet] ", name_of(config()), " needs ", reads ? "tokens, [" : "text, [", batch,
      ", up to ", config().text_tokens, reads ? "" : ", " + std::to_string(config().text_channels),
      "], got ", text.defined() ? text.sizes() : at::IntArrayRef());
  KINORA_CHECK(!reads || conditions.text_lengths.defined(), kShape, "[unet] ", name_of(config()),
               " has a text encoder and needs text_lengths");
}

at::Tensor Unet::embed_time(const at::Tensor& t) const {
  return at::silu(time_embedding.forward(t * config().time_scale));
}

UnetReads Unet::read_text(const diffusion::Conditions& conditions) const {
  const at::Tensor& null = conditions.null_text;
  UnetReads reads;
  if (clip) {  // padding is read as the rest
    const at::Tensor& tokens = conditions.tokens;
    const at::Tensor nothing = null_ids.narrow(0, 0, tokens.size(1)).to(at::kLong);
    reads.text =
        clip->embed(null.defined() ? at::where(null.view({-1, 1}), nothing, tokens) : tokens);
    return reads;
  }
  at::Tensor lengths = conditions.text_lengths;
  reads.text =
      text_encoder ? text_encoder->embed_captions(conditions.tokens, lengths) : conditions.text;
  if (null.defined()) {
    const int64_t length = reads.text.size(1);
    reads.text = at::where(null.view({-1, 1, 1}),
                           null_text.narrow(0, 0, length).to(reads.text.scalar_type()), reads.text);
    if (lengths.defined()) {
      lengths = at::where(null, at::full_like(lengths, length), lengths);
    }
  }
  if (lengths.defined()) {
    // A text without tokens has one: what lies there is zeros or the padding's state.
    reads.lengths = lengths.clamp(1, reads.text.size(1)).to(at::kInt).contiguous();
  }
  return reads;
}

UnetReads Unet::reads(const at::Tensor& t, const diffusion::Conditions& conditions,
                      const diffusion::Prepared& prepared) const {
  UnetReads reads = read_text(conditions);
  reads.prepared_time = prepared.of_times;
  reads.prepared_texts = prepared.of_texts;
  if (!prepared.of_times.defined()) {
    reads.time = embed_time(t);
  }
  return reads;
}

diffusion::Prepared Unet::prepare(const at::Tensor& times,
                                  const diffusion::Conditions& conditions) {
  const at::Tensor& text = has_text_encoder() ? conditions.tokens : conditions.text;
  // Without a text predict() says what is missing; where weights come and go, those of all blocks
  // would have to come once more.
  if (kernels_ == nullptr || is_tapped() || hook() || !text.defined()) {
    return {};
  }
  diffusion::Prepared prepared;
  const int64_t num_times = times.size(0);
  const int64_t batch = text.size(0);
  const UnetReads reads{.time = embed_time(times)};
  std::vector<at::Tensor> projected;  // [S, B C] of each residual block
  for (const UnetResnet* resnet : resnets_) {
    projected.push_back(resnet->projected_time(reads, num_times)
                            .unsqueeze(1)
                            .expand({num_times, batch, -1})
                            .reshape({num_times, -1}));
  }
  prepared.of_times = at::cat(projected, 1);
  const at::Tensor states = read_text(conditions).text;
  for (const UnetTransformer* transformer : transformers_) {
    const std::vector<at::Tensor> of_transformer = transformer->prepare(states);
    if (of_transformer.empty()) {
      prepared.of_texts.clear();
      break;
    }
    prepared.of_texts.insert(prepared.of_texts.end(), of_transformer.begin(), of_transformer.end());
  }
  return prepared;
}

at::Tensor Unet::predict(const at::Tensor& x_t, const at::Tensor& t,
                         const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const UnetReads reads = this->reads(t, conditions, pass.prepared);
  int64_t block = 0;
  // body(x, reads) of the next block, whose streams are x and what lies beside it.
  const auto run = [&](std::vector<at::Tensor> streams, auto body) {
    const size_t num_streams = streams.size();
    const auto whole = [body, reads, num_streams](const std::vector<at::Tensor>& in) {
      UnetReads here = reads;
      if (in.size() > num_streams) {
        here.time = in[num_streams];
        here.text = in[num_streams + 1];
      }
      return body(num_streams == 1 ? in[0] : at::cat({in[0], in[1]}, 1), here);
    };
    const int64_t number = block++;
    // What a block adds to the gradient of each input adds up by itself, as where it is computed
    // again: others read these, too.
    for (at::Tensor& stream : streams) {
      stream = stream.view_as(stream);
    }
    std::vector<at::Tensor> shared;
    if (reads.time.defined()) {
      shared = {reads.time.view_as(reads.time), reads.text.view_as(reads.text)};
    }
    return run_block(whole, std::move(streams), shared, number < recompute_blocks(), hook(),
                     first_block_ + number);
  };

  at::Tensor h = conv_in.forward(x_t.contiguous(at::MemoryFormat::ChannelsLast));
  std::vector<at::Tensor> left = {h};  // for the way up
  for (const auto& level : down_blocks) {
    for (size_t unit = 0; unit < level->num_units(); ++unit) {
      const bool resamples = unit + 1 == level->num_units() && level->changes_size();
      for (at::Tensor& result :
           run({h}, [&level = *level, unit, resamples](const at::Tensor&x, const UnetReads&here) {
             std::vector<at::Tensor> results = {level.forward(unit, x, here)};
             if (resamples) {
               results.push_back(level.halved(results.front()));
             }
             return results;
           })) {
        left.push_back(result);
        h = std::move(result);
      }
    }
  }
  h = run({h}, [this](const at::Tensor& x, const UnetReads& here) {
        return std::vector{mid_block->forward(x, here)};
      }).front();
  for (const auto& level : up_blocks) {
    for (size_t unit = 0; unit < level->num_units(); ++unit) {
      const at::Tensor beside = std::move(left.back());
      left.pop_back();
      const bool resamples = unit + 1 == level->num_units() && level->changes_size();
      const int64_t rows = resamples ? left.back().size(2) : 0;
      const int64_t columns = resamples ? left.back().size(3) : 0;
      h = run({h, beside}, [&level = *level, unit, resamples, rows, columns](
                               const at::Tensor& x, const UnetReads& here) {
            const at::Tensor result = level.forward(unit, x, here);
            return std::vector{resamples ? level.doubled(result, rows, columns) : result};
          }).front();
    }
  }
  return tapped(conv_out.forward(conv_norm_out.forward_silu(h)).to(at::kFloat).contiguous());
}

}  // namespace kinora::models
