#include "kinora/models/transformers/transformer_config.h"

#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::models {
namespace {

void fill(int64_t& value, int64_t published) {
  if (value == 0) {
    value = published;
  }
}

double real(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

void resolve_transformer(ModelConfig& config, const ModelConfig& published) {
  fill(config.depth, published.depth);
  fill(config.hidden, published.hidden);
  fill(config.heads, published.heads);
  fill(config.patch, published.patch);
  fill(config.patch_frames, published.patch_frames);
  fill(config.patch_frames, 1);
  fill(config.text_channels, published.text_channels);
  fill(config.text_tokens, published.text_tokens);
  config.size_conditions |= published.size_conditions;
  KINORA_CHECK(config.depth > 0 && config.hidden > 0 && config.heads > 0 && config.patch > 0,
               kConfig, "[model] model.depth, hidden, heads and patch must be positive, got ",
               config.depth, ", ", config.hidden, ", ", config.heads, ", ", config.patch,
               ". Hint: set them, or a model.name such as DiT-S/2");
  KINORA_CHECK(config.hidden % config.heads == 0 && config.hidden % 4 == 0, kConfig,
               "[model] model.hidden must be a multiple of 4 and of model.heads = ", config.heads,
               ", got ", config.hidden);
  KINORA_CHECK(config.height > 0 && config.width > 0 && config.height % config.patch == 0 &&
                   config.width % config.patch == 0,
               kConfig,
               "[model] model.height and width must be positive multiples of model.patch = ",
               config.patch, ", got ", config.height, " x ", config.width);
  KINORA_CHECK(config.frames > 0 && config.frames % config.patch_frames == 0, kConfig,
               "[model] model.frames must be a positive multiple of model.patch_frames = ",
               config.patch_frames, ", got ", config.frames);
  KINORA_CHECK(config.mlp_hidden() > 0, kConfig, "[model] model.mlp_ratio gives an empty MLP, got ",
               config.mlp_ratio);
}

ModelShape transformer_shape(const ModelConfig& config) {
  return {.blocks = config.depth,
          .width = config.hidden,
          .heads = config.heads,
          .mlp_width = config.mlp_hidden(),
          .frames = config.num_frames(),
          .rows = config.height / config.patch,
          .columns = config.width / config.patch,
          .patch_frames = config.patch_frames,
          .patch = config.patch,
          .has_windows = !config.window.empty()};
}

TransformerMacs::TransformerMacs(const ModelConfig& config)
    : depth(real(config.depth)),
      hidden(real(config.hidden)),
      frames(real(config.num_frames())),
      places(real(config.tokens_a_frame())),
      tokens(frames * places),
      mlp(2 * tokens * hidden * real(config.mlp_hidden())) {  // fc1, fc2
  const double text = real(config.text_tokens);
  const double patch_area = real(config.patch * config.patch * config.patch_frames);
  cross_attention = tokens * (2 * hidden * hidden + 2 * text * hidden) + text * 2 * hidden * hidden;
  modulation = 6 * hidden * hidden;
  captions = text * (real(config.text_channels) * hidden + hidden * hidden);
  const double channels = real(config.in_channels + config.out_channels());
  ends = tokens * hidden * patch_area * channels + 2 * hidden * hidden + (256 + hidden) * hidden;
}

double TransformerMacs::attention(double keys) const {
  return tokens * (4 * hidden * hidden + 2 * keys * hidden);  // qkv and proj; scores and values
}

}  // namespace kinora::models
