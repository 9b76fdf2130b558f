#include "kinora/models/transformers/transformer_family.h"

#include <algorithm>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/grid.h"

namespace kinora::models {
namespace {

constexpr int64_t kUsualStates = 257;  // of CLIP ViT-H/14, of a picture
// Of HunyuanVideo, as it is drawn with.
constexpr double kFirstFrameShare = 0.001;
constexpr int64_t kFramesALatent = 4;

void fill(int64_t& value, int64_t published) {
  if (value == 0) {
    value = published;
  }
}

double real(int64_t value) {
  return static_cast<double>(value);
}

/// How many frames have tokens: those that are drawn, and pictures that are shown as tokens.
int64_t num_frames(const ModelConfig& config) {
  const int64_t changed = config.transformer.input == ShownInput::kReference ? 1 : 0;
  return grid_of(config).frames + changed + config.transformer.references;
}

/// A key that not every transformer reads.
struct OwnKey {
  const char* name;
  bool is_set;
};

std::vector<OwnKey> own_keys(const TransformerConfig& config) {
  const TransformerConfig unset;
  return {{"qk_norm", config.qk_norm == ops::Switch::kOn},
          {"size_conditions", config.size_conditions},
          {"base_pixels", config.base_pixels != unset.base_pixels},
          {"position_scale", config.position_scale != unset.position_scale},
          {"time_position_scale", config.time_position_scale != unset.time_position_scale},
          {"kv_compress", config.kv_compress != unset.kv_compress},
          {"kv_compress_factor", config.kv_compress_factor != unset.kv_compress_factor},
          {"kv_compress_layers", !config.kv_compress_layers.empty()},
          {"given_embedders", config.given_embedders},
          {"input", config.input != unset.input},
          {"references", config.references > 0},
          {"image_channels", config.image_channels > 0},
          {"image_positions", config.image_positions > 0},
          {"rotary_3d", config.rotary_3d},
          {"parallel_depth", config.parallel_depth > 0},
          {"second_attention", !config.second_attention.empty()},
          {"rotary_axes", !config.rotary_axes.empty()},
          {"rotary_base", config.rotary_base > 0},
          {"refiner_depth", config.refiner_depth > 0},
          {"position_grid", config.position_grid > 0},
          {"guidance", config.guidance > 0},
          {"learned_positions", config.learned_positions},
          {"single_first_frame", config.single_first_frame},
          {"clean_first_frame", config.clean_first_frame},
          {"base_grid", !config.base_grid.empty()},
          {"time_channels", config.time_channels > 0},
          {"ofs", config.ofs > 0},
          {"window", !config.window.empty()},
          {"sliding_window", !config.sliding_window.empty()}};
}

diffusion::GivenWay given_way_of(const ModelConfig& config) {
  using diffusion::GivenWay;
  const FamilyConditions& takes = family_of(config).conditions;
  if (!takes.frame_mask) {
    return GivenWay::kNone;
  }
  if (takes.given_is_marked) {
    return config.transformer.clean_first_frame ? GivenWay::kClean : GivenWay::kNone;
  }
  if (config.transformer.given_embedders) {
    if (takes.given_as_clip) {
      return GivenWay::kNone;
    }
    return takes.given_beside ? GivenWay::kBeside : GivenWay::kNoised;
  }
  return takes.given_beside ? GivenWay::kNone : GivenWay::kClean;
}

ShownInput shown_input_of(const ModelConfig& config) {
  const FamilyConditions& takes = family_of(config).conditions;
  if (config.transformer.references > 0) {
    return ShownInput::kSubjects;
  }
  if (!config.transformer.given_embedders) {
    return config.transformer.input;
  }
  return takes.given_as_clip      ? ShownInput::kFrames
         : takes.given_is_marked  ? ShownInput::kMarkedFirstFrame
         : takes.given_as_latents ? ShownInput::kFirstFrame
                                  : ShownInput::kPlain;
}

}  // namespace

void check_own_keys(const ModelConfig& config) {
  for (const OwnKey& key : own_keys(config.transformer)) {
    const auto reads = [&](const Family& family) {
      return std::ranges::count(family.own_keys, key.name) > 0;
    };
    KINORA_CHECK(!key.is_set || reads(family_of(config)), kConfig, "[model] ",
                 family_of(config).name, " has no use for model.", key.name,
                 ". Hint: leave it out; it is for ", families_that(reads));
  }
}

void resolve_transformer(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  const TransformerConfig& given = published.transformer;
  fill(own.depth, given.depth);
  fill(own.hidden, given.hidden);
  fill(own.heads, given.heads);
  fill(own.patch, given.patch);
  fill(own.patch_frames, given.patch_frames);
  fill(own.patch_frames, 1);
  own.size_conditions |= given.size_conditions;
  check_own_keys(config);
  KINORA_CHECK(config.unet == UnetConfig{}, kConfig, "[model] ", family_of(config).name,
               " has no use for model.unet. Hint: leave it out; it is for U-Nets");
  if (own.qk_norm == ops::Switch::kAuto) {
    own.qk_norm = family_of(config).qk_norm ? ops::Switch::kOn : ops::Switch::kOff;
  }
  KINORA_CHECK(own.sliding_window.empty() || own.sliding_window.size() == 3, kConfig,
               "[model] model.sliding_window must be 3 numbers, frames, rows and columns, got ",
               at::IntArrayRef(own.sliding_window));
  KINORA_CHECK(own.depth > 0 && own.hidden > 0 && own.heads > 0 && own.patch > 0, kConfig,
               "[model] model.depth, hidden, heads and patch must be positive, got ", own.depth,
               ", ", own.hidden, ", ", own.heads, ", ", own.patch,
               ". Hint: set them, or a model.name such as DiT-S/2");
  KINORA_CHECK(own.hidden % own.heads == 0 && own.hidden % 4 == 0, kConfig,
               "[model] model.hidden must be a multiple of 4 and of model.heads = ", own.heads,
               ", got ", own.hidden);
  KINORA_CHECK(config.height > 0 && config.width > 0 && config.height % own.patch == 0 &&
                   config.width % own.patch == 0,
               kConfig,
               "[model] model.height and width must be positive multiples of model.patch = ",
               own.patch, ", got ", config.height, " x ", config.width);
  KINORA_CHECK(config.frames > 0 &&
                   (config.frames % own.patch_frames == 0 || family_of(config).fills_patches),
               kConfig, "[model] model.frames must be a positive multiple of model.patch_frames = ",
               own.patch_frames, ", got ", config.frames);
  KINORA_CHECK(own.mlp_hidden() > 0, kConfig, "[model] model.mlp_ratio gives an empty MLP, got ",
               own.mlp_ratio);
}

int64_t channels_beside(const ModelConfig& config) {
  switch (shown_input_of(config)) {
    case ShownInput::kFrames:
      return kFrameMaskChannels + config.in_channels;
    case ShownInput::kFirstFrame:
      return config.in_channels;
    case ShownInput::kMarkedFirstFrame:
      return config.in_channels + 1;
    case ShownInput::kFill:
      return config.in_channels + config.compression * config.compression;
    default:
      return 0;
  }
}

ModelShape transformer_shape(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  const Grid grid = grid_of(config);
  const bool fills = family_of(config).fills_patches;
  const ShownInput input = shown_input_of(config);
  const bool is_marked = input == ShownInput::kMarkedFirstFrame;
  const bool goes_on = is_marked || own.clean_first_frame;
  return {.blocks = own.depth + own.parallel_depth,
          .width = own.hidden,
          .heads = own.heads,
          .frames = num_frames(config),
          .rows = grid.rows,
          .columns = grid.columns,
          .patch_frames = fills ? 1 : own.patch_frames,
          .patch = own.patch,
          .is_undivided = own.kv_compress != KvSampling::kNone || own.clean_first_frame,
          .given_way = given_way_of(config),
          .has_windows = !own.window.empty(),
          .has_sliding_window = !own.sliding_window.empty(),
          .places_frames = own.single_first_frame && own.sliding_window.empty(),
          .is_distilled = own.guidance > 0,
          .input = input,
          .references = own.references,
          .channels_beside = shows_tokens(input) ? config.in_channels : channels_beside(config),
          .reads_image_prompt = own.image_channels > 0,
          .image_states = own.image_channels == 0   ? 0
                          : own.image_positions > 0 ? own.image_positions
                                                    : kUsualStates,
          .image_channels = own.image_channels,
          .reads_both_ends = own.image_positions > 0,
          .frames_before = fills ? grid.frames * own.patch_frames - config.frames : 0,
          .takes_first_frame = own.clean_first_frame,
          .reads_frame_in_text = goes_on,
          .first_frame_share = goes_on ? kFirstFrameShare : 0.0,
          .decoded_before = is_marked ? kFramesALatent : 0};
}

TransformerMacs::TransformerMacs(const ModelConfig& config)
    : depth(real(config.transformer.depth)),
      hidden(real(config.transformer.hidden)),
      frames(real(num_frames(config))),
      places(real(grid_of(config).tokens_a_frame())),
      tokens(frames * places),
      mlp(2 * tokens * hidden * real(config.transformer.mlp_hidden())) {  // fc1, fc2
  const double text = real(config.text_tokens);
  cross_attention = tokens * (2 * hidden * hidden + 2 * text * hidden) + text * 2 * hidden * hidden;
  modulation = 6 * hidden * hidden;
  captions = text * (real(config.text_channels) * hidden + hidden * hidden);
  const double channels =
      real(config.in_channels + channels_beside(config) + config.out_channels());
  ends = tokens * hidden * real(config.transformer.patch_volume()) * channels +
         2 * hidden * hidden + (256 + hidden) * hidden;
}

double TransformerMacs::attention(double keys) const {
  return tokens * (4 * hidden * hidden + 2 * keys * hidden);  // qkv and proj; scores and values
}

bool fills_captions(const ModelConfig& config) {
  return family_of(config).fills_captions && !config.transformer.single_first_frame;
}

}  // namespace kinora::models
