#include "kinora/pipelines/diffusers_transformer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/diffusion/schedule.h"

namespace kinora::pipelines {
namespace {

using models::ModelConfig;
using nlohmann::json;

/// What all were before they had a class each.
constexpr const char* kOldClass = "Transformer2DModel";
constexpr double kMlpRatio = 4.0;  // diffusers has no other
/// Published files of diffusers say so of models that were trained with kNormEpsilon.
constexpr double kMostNormEpsilon = 1e-5;
constexpr double kNormEpsilon = 1e-6;  // of all norms here
/// PixArt-alpha's and -Sigma's longest captions, which no config.json has.
constexpr int64_t kAlphaTokens = 120;
constexpr int64_t kSigmaTokens = 300;

// ---- what config.json says of each class ----

json dit_recipe(const DiffusersConfig& config, int64_t /*sample_size*/) {
  return {{"num_classes", config.get<int64_t>("num_embeds_ada_norm", 1000)}};
}

json describe_dit(const ModelConfig& model) {
  return {{"num_embeds_ada_norm", model.num_classes}};
}

json pixart_recipe(const DiffusersConfig& config, int64_t sample_size) {
  const auto scale =
      config.get<int64_t>("interpolation_scale", std::max<int64_t>(sample_size / 64, 1));
  const bool sizes = config.get<bool>("use_additional_conditions", sample_size == 128);
  KINORA_CHECK(config.has("caption_channels"), kConfig, "[diffusers] ", config.path(),
               ": caption_channels must be given");
  // Of 1024 pixels, alpha is told the size and Sigma is not; smaller ones look the same.
  const bool is_sigma = sample_size >= 128 && !sizes;
  return {{"text_channels", config.get<int64_t>("caption_channels", 0)},
          {"text_tokens", is_sigma ? kSigmaTokens : kAlphaTokens},
          {"position_scale", static_cast<double>(scale)},
          {"size_conditions", sizes},
          {"compression", 8}};
}

json describe_pixart(const ModelConfig& model) {
  return {{"caption_channels", model.text_channels},
          {"cross_attention_dim", model.transformer.hidden},
          {"interpolation_scale", static_cast<int64_t>(model.transformer.position_scale)},
          {"use_additional_conditions", model.transformer.size_conditions}};
}

json latte_recipe(const DiffusersConfig& config, int64_t sample_size) {
  KINORA_CHECK(config.has("caption_channels"), kConfig, "[diffusers] ", config.path(),
               ": caption_channels must be given");
  return {{"text_channels", config.get<int64_t>("caption_channels", 0)},
          {"text_tokens", kAlphaTokens},
          {"position_scale", static_cast<double>(std::max<int64_t>(sample_size / 64, 1))},
          {"frames", config.get<int64_t>("video_length", 16)},
          {"compression", 8}};
}

json describe_latte(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  const int64_t scale = std::max<int64_t>(model.height / 64, 1);
  KINORA_CHECK(own.position_scale == static_cast<double>(scale), kConfig,
               "[diffusers] model.position_scale must be ", scale, " for a height of ",
               model.height, " in diffusers, got ", own.position_scale,
               ". Hint: write a .safetensors file, which has our names");
  return {{"caption_channels", model.text_channels},
          {"cross_attention_dim", own.hidden},
          {"num_embeds_ada_norm", diffusion::kDdpmTimesteps},
          {"video_length", model.frames}};
}

// ---- multimodal transformers, which share nothing with those ----

constexpr const char* kSd3Class = "SD3Transformer2DModel";
constexpr const char* kFluxClass = "FluxTransformer2DModel";
constexpr int64_t kFluxPatch = 2;  // that its pipelines make, channels outermost
constexpr double kFluxGuidance = 3.5;
constexpr double kFillGuidance = 30.0;
constexpr int64_t kFluxCompression = 8;
constexpr int64_t kFluxSide = 128;  // of latents, where nobody says

bool is_multimodal(const models::Family& family) {
  return family.diffusers->class_name == kSd3Class || family.diffusers->class_name == kFluxClass;
}

json sd3_recipe(const DiffusersConfig& config) {
  const auto heads = config.get<int64_t>("num_attention_heads", 18);
  const int64_t hidden = heads * config.get<int64_t>("attention_head_dim", 64);
  config.require<int64_t>("caption_projection_dim", hidden, 1152);
  const auto channels = config.get<int64_t>("in_channels", 16);
  config.require<int64_t>("out_channels", channels, 16);
  const auto size = config.get<int64_t>("sample_size", 128);
  const auto patch = config.get<int64_t>("patch_size", 2);
  const auto grid = config.get<int64_t>("pos_embed_max_size", 96);
  KINORA_CHECK(patch > 0 && size >= patch && grid > 0, kConfig, config.message(),
               "patch_size, sample_size and pos_embed_max_size must be positive, and at least one "
               "patch, got ",
               patch, ", ", size, " and ", grid);
  const bool has_norm = config.has("qk_norm");
  if (has_norm) {
    config.require<std::string>("qk_norm", "rms_norm", "");
  }
  return {{"depth", config.get<int64_t>("num_layers", 18)},
          {"hidden", hidden},
          {"heads", heads},
          {"patch", patch},
          {"in_channels", channels},
          {"height", size},
          {"width", size},
          {"text_channels", config.get<int64_t>("joint_attention_dim", 4096)},
          {"pooled_channels", config.get<int64_t>("pooled_projection_dim", 2048)},
          {"text_tokens", 77 + 256},  // of CLIP and T5, as published
          {"qk_norm", has_norm ? "on" : "off"},
          {"second_attention", config.get<std::vector<int64_t>>("dual_attention_layers", {})},
          {"position_grid", grid},
          {"position_scale", static_cast<double>(grid) / static_cast<double>(size / patch)}};
}

json flux_recipe(const DiffusersConfig& config) {
  config.require<int64_t>("patch_size", 1, 1);
  constexpr int64_t kPlaces = kFluxPatch * kFluxPatch;
  const auto in_channels = config.get<int64_t>("in_channels", 64);
  const auto packed =
      config.has("out_channels") ? config.get<int64_t>("out_channels", in_channels) : in_channels;
  KINORA_CHECK(packed > 0 && packed % kPlaces == 0, kConfig, config.message(),
               "in_channels must be those of patches of ", kFluxPatch, " x ", kFluxPatch, ", got ",
               packed);
  const bool fills = in_channels == 2 * packed + kPlaces * kFluxCompression * kFluxCompression;
  KINORA_CHECK(fills || in_channels == packed, kConfig, config.message(),
               "in_channels must be out_channels, or of Fill twice as many and ",
               kPlaces * kFluxCompression * kFluxCompression, " of a mask, got ", in_channels,
               " and ", packed, ". Hint: control models (canny, depth) are not there");
  const auto heads = config.get<int64_t>("num_attention_heads", 24);
  const bool is_distilled = config.get<bool>("guidance_embeds", false);
  return {{"depth", config.get<int64_t>("num_layers", 19)},
          {"parallel_depth", config.get<int64_t>("num_single_layers", 38)},
          {"hidden", heads * config.get<int64_t>("attention_head_dim", 128)},
          {"heads", heads},
          {"patch", kFluxPatch},
          {"in_channels", packed / kPlaces},
          {"input", to_string(fills ? models::ShownInput::kFill : models::ShownInput::kPlain)},
          {"height", kFluxSide},
          {"width", kFluxSide},
          {"text_channels", config.get<int64_t>("joint_attention_dim", 4096)},
          {"pooled_channels", config.get<int64_t>("pooled_projection_dim", 768)},
          {"rotary_axes", config.get<std::vector<int64_t>>("axes_dims_rope", {16, 56, 56})},
          {"guidance", !is_distilled ? 0.0
                       : fills       ? kFillGuidance
                                     : kFluxGuidance},
          // As published: of dev 512, of schnell 256.
          {"text_tokens", is_distilled ? 512 : 256}};
}

json describe_multimodal(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  json config = {{"attention_head_dim", own.hidden / own.heads},
                 {"joint_attention_dim", model.text_channels},
                 {"num_attention_heads", own.heads},
                 {"num_layers", own.depth},
                 {"pooled_projection_dim", model.pooled_channels}};
  if (own.rotary_axes.empty()) {
    config.update(
        {{"caption_projection_dim", own.hidden},
         {"in_channels", model.in_channels},
         {"out_channels", model.in_channels},
         {"patch_size", own.patch},
         {"pos_embed_max_size", own.position_grid},
         {"dual_attention_layers", own.second_attention},
         {"sample_size", static_cast<int64_t>(std::lround(static_cast<double>(own.position_grid) /
                                                          own.position_scale)) *
                             own.patch}});
    config["qk_norm"] = own.qk_norm == ops::Switch::kOn ? json("rms_norm") : json();
  } else {
    const int64_t more = models::channels_beside(model);
    const int64_t places = own.patch * own.patch;
    config.update({{"axes_dims_rope", own.rotary_axes},
                   {"guidance_embeds", own.guidance > 0},
                   {"in_channels", (model.in_channels + more) * places},
                   {"out_channels", more > 0 ? json(model.in_channels * places) : json()},
                   {"num_single_layers", own.parallel_depth},
                   {"patch_size", 1}});
  }
  return config;
}

// ---- Wan, whose keys are its own ----

constexpr const char* kWanClass = "WanTransformer3DModel";
// What WanPipeline draws by itself: 81 frames of 480 x 832 pixels, as latents.
constexpr int64_t kWanFrames = 21;
constexpr int64_t kWanHeight = 60;
constexpr int64_t kWanWidth = 104;
constexpr int64_t kWanTokens = 512;

bool is_wan(const models::Family& family) {
  return family.diffusers->class_name == kWanClass;
}

/// The ratio whose MLP has `width` channels (TransformerConfig::mlp_hidden).
double ratio_of(int64_t width, int64_t hidden) {
  const double ratio = static_cast<double>(width) / static_cast<double>(hidden);
  const bool is_less = static_cast<int64_t>(static_cast<double>(hidden) * ratio) < width;
  return is_less ? std::nextafter(ratio, 2 * ratio) : ratio;
}

json wan_recipe(const DiffusersConfig& config) {
  config.require<int64_t>("freq_dim", 256, 256);
  config.require<bool>("cross_attn_norm", true, true);
  config.require<std::string>("qk_norm", "rms_norm_across_heads", "rms_norm_across_heads");
  config.require<double>("eps", kNormEpsilon, kNormEpsilon);
  const auto patch = config.get<std::vector<int64_t>>("patch_size", {1, 2, 2});
  KINORA_CHECK(patch.size() == 3 && patch[1] == patch[2], kConfig, config.message(),
               "patch_size must be frames, rows and as many columns, got ",
               config.written("patch_size"));
  const auto in_channels = config.get<int64_t>("in_channels", 16);
  const auto channels = config.get<int64_t>("out_channels", 16);
  const bool is_shown = in_channels == 2 * channels + models::kFrameMaskChannels;
  KINORA_CHECK(channels > 0 && (is_shown || in_channels == channels), kConfig, config.message(),
               "in_channels must be out_channels, or of image to video twice as many and ",
               models::kFrameMaskChannels, ", got ", in_channels, " and ", channels);
  const auto heads = config.get<int64_t>("num_attention_heads", 40);
  const int64_t hidden = heads * config.get<int64_t>("attention_head_dim", 128);
  KINORA_CHECK(hidden > 0, kConfig, config.message(),
               "num_attention_heads and attention_head_dim must be positive, got ", heads, " and ",
               config.get<int64_t>("attention_head_dim", 128));
  const auto added = config.get<int64_t>("added_kv_proj_dim", 0);
  const auto image_channels = config.get<int64_t>("image_dim", 0);
  const auto positions = config.get<int64_t>("pos_embed_seq_len", 0);
  KINORA_CHECK(
      image_channels == 0 ? added == 0 && positions == 0
                          : is_shown && image_channels > 0 && added == hidden,
      kConfig, config.message(),
      "image_dim must come with in_channels of image to video and an added_kv_proj_dim of ", hidden,
      ", num_attention_heads times attention_head_dim, and these with it, got ",
      config.written("image_dim"), ", ", in_channels, " and ", config.written("added_kv_proj_dim"));
  return {{"given_embedders", is_shown},
          {"image_channels", image_channels},
          {"image_positions", positions},
          {"depth", config.get<int64_t>("num_layers", 40)},
          {"hidden", hidden},
          {"heads", heads},
          {"patch", patch[1]},
          {"patch_frames", patch[0]},
          {"mlp_ratio", ratio_of(config.get<int64_t>("ffn_dim", 13824), hidden)},
          {"in_channels", channels},
          {"frames", kWanFrames},
          {"height", kWanHeight},
          {"width", kWanWidth},
          {"text_channels", config.get<int64_t>("text_dim", 4096)},
          {"text_tokens", kWanTokens}};
}

json describe_wan(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  KINORA_CHECK(!model.learn_sigma && !model.text_encoder.any(), kConfig,
               "[diffusers] model.learn_sigma must be false and model.text_encoder.layers 0 for "
               "diffusers, got ",
               model.learn_sigma, " and ", model.text_encoder.layers,
               ". Hint: write a .safetensors file, which has our names");
  const auto number_or_null = [](int64_t value) { return value > 0 ? json(value) : json(); };
  return {{"added_kv_proj_dim", number_or_null(own.image_channels > 0 ? own.hidden : 0)},
          {"attention_head_dim", own.hidden / own.heads},
          {"image_dim", number_or_null(own.image_channels)},
          {"pos_embed_seq_len", number_or_null(own.image_positions)},
          {"cross_attn_norm", true},
          {"eps", kNormEpsilon},
          {"ffn_dim", own.mlp_hidden()},
          {"freq_dim", 256},
          {"in_channels", model.in_channels + models::channels_beside(model)},
          {"num_attention_heads", own.heads},
          {"num_layers", own.depth},
          {"out_channels", model.in_channels},
          {"patch_size", {own.patch_frames, own.patch, own.patch}},
          {"qk_norm", "rms_norm_across_heads"},
          {"text_dim", model.text_channels}};
}

// ---- HunyuanVideo, likewise ----

constexpr const char* kHunyuanClass = "HunyuanVideoTransformer3DModel";
// What HunyuanVideoPipeline draws by itself: 129 frames of 720 x 1280 pixels, as latents.
constexpr int64_t kHunyuanFrames = 33;
constexpr int64_t kHunyuanHeight = 90;
constexpr int64_t kHunyuanWidth = 160;
constexpr int64_t kHunyuanTokens = 256;
constexpr double kHunyuanGuidance = 6.0;
constexpr const char* kLatentConcat = "latent_concat";

bool is_hunyuan(const models::Family& family) {
  return family.diffusers->class_name == kHunyuanClass;
}

json hunyuan_recipe(const DiffusersConfig& config) {
  config.require<std::string>("qk_norm", "rms_norm", "rms_norm");
  config.require<int64_t>("patch_size_t", 1, 1);
  const bool is_clean = config.is("image_condition_type", kTokenReplace);
  const bool is_shown = config.is("image_condition_type", kLatentConcat);
  KINORA_CHECK(is_clean || is_shown || !config.has("image_condition_type"), kConfig,
               config.message(), "image_condition_type must be ", kTokenReplace, ", ",
               kLatentConcat, " or null, of text to video, got ",
               config.written("image_condition_type"));
  const auto in_channels = config.get<int64_t>("in_channels", 16);
  KINORA_CHECK(!is_shown || in_channels % 2 == 1, kConfig, config.message(),
               "in_channels must be odd with image_condition_type ", kLatentConcat,
               ", latents twice and which ones are given, got ", in_channels);
  const int64_t channels = is_shown ? in_channels / 2 : in_channels;
  if (config.has("out_channels")) {
    config.require<int64_t>("out_channels", channels, channels);
  }
  const auto heads = config.get<int64_t>("num_attention_heads", 24);
  return {{"depth", config.get<int64_t>("num_layers", 20)},
          {"parallel_depth", config.get<int64_t>("num_single_layers", 40)},
          {"refiner_depth", config.get<int64_t>("num_refiner_layers", 2)},
          {"hidden", heads * config.get<int64_t>("attention_head_dim", 128)},
          {"heads", heads},
          {"patch", config.get<int64_t>("patch_size", 2)},
          {"mlp_ratio", config.get<double>("mlp_ratio", kMlpRatio)},
          {"in_channels", channels},
          {"clean_first_frame", is_clean},
          {"given_embedders", is_shown},
          {"frames", kHunyuanFrames},
          {"height", kHunyuanHeight},
          {"width", kHunyuanWidth},
          {"text_channels", config.get<int64_t>("text_embed_dim", 4096)},
          {"text_tokens",
           is_clean || is_shown ? models::text_tokens_with_picture(is_clean) : kHunyuanTokens},
          {"pooled_channels", config.get<int64_t>("pooled_projection_dim", 768)},
          {"rotary_axes", config.get<std::vector<int64_t>>("rope_axes_dim", {16, 56, 56})},
          {"rotary_base", config.get<double>("rope_theta", 256.0)},
          {"guidance", config.get<bool>("guidance_embeds", true) ? kHunyuanGuidance : 0.0}};
}

/// kConfig where diffusers' class lacks what `model` is.
void check_hunyuan(const ModelConfig& model) {
  KINORA_CHECK(model.pooled_channels > 0 && !model.text_encoder.any() && !model.learn_sigma &&
                   model.transformer.qk_norm == ops::Switch::kOn,
               kConfig,
               "[diffusers] model.pooled_channels must be positive, model.text_encoder.layers 0, "
               "model.learn_sigma false and model.qk_norm on for diffusers, got ",
               model.pooled_channels, ", ", model.text_encoder.layers, ", ", model.learn_sigma,
               " and ", model.transformer.qk_norm == ops::Switch::kOn ? "on" : "off",
               ". Hint: write a .safetensors file, which has our names");
}

json describe_hunyuan(const ModelConfig& model) {
  check_hunyuan(model);
  const models::TransformerConfig& own = model.transformer;
  return {{"attention_head_dim", own.hidden / own.heads},
          {"guidance_embeds", own.guidance > 0},
          {"image_condition_type", own.clean_first_frame ? json(kTokenReplace)
                                   : own.given_embedders ? json(kLatentConcat)
                                                         : json()},
          {"in_channels", model.in_channels + models::channels_beside(model)},
          {"mlp_ratio", own.mlp_ratio},
          {"num_attention_heads", own.heads},
          {"num_layers", own.depth},
          {"num_refiner_layers", own.refiner_depth},
          {"num_single_layers", own.parallel_depth},
          {"out_channels", model.in_channels},
          {"patch_size", own.patch},
          {"patch_size_t", 1},
          {"pooled_projection_dim", model.pooled_channels},
          {"qk_norm", "rms_norm"},
          {"rope_axes_dim", own.rotary_axes},
          {"rope_theta", own.rotary_base},
          {"text_embed_dim", model.text_channels}};
}

// ---- CogVideoX, likewise ----

constexpr const char* kCogClass = "CogVideoXTransformer3DModel";
constexpr double kCogOfs = 2.0;  // of its pipelines
constexpr double kCogNormEpsilon = 1e-5;

bool is_cogvideox(const models::Family& family) {
  return family.diffusers->class_name == kCogClass;
}

json cogvideox_recipe(const DiffusersConfig& config) {
  config.require<std::string>("activation_fn", "gelu-approximate", "gelu-approximate");
  config.require<std::string>("timestep_activation_fn", "silu", "silu");
  config.require<bool>("norm_elementwise_affine", true, true);
  config.require<double>("norm_eps", kCogNormEpsilon, kCogNormEpsilon);
  config.require<bool>("attention_bias", true, true);
  config.require<bool>("flip_sin_to_cos", true, true);
  config.require<int64_t>("freq_shift", 0, 0);
  const bool has_frames = config.has("patch_size_t");
  const auto patch_frames = config.get<int64_t>("patch_size_t", 1);
  KINORA_CHECK(!has_frames || patch_frames > 1, kConfig, config.message(),
               "patch_size_t must be null, or 2 or more, got ", patch_frames);
  if (!has_frames) {
    config.require<bool>("patch_bias", true, true);
  }
  const auto in_channels = config.get<int64_t>("in_channels", 16);
  const auto channels = config.get<int64_t>("out_channels", 16);
  const bool is_shown = in_channels == 2 * channels;
  KINORA_CHECK(channels > 0 && (is_shown || in_channels == channels), kConfig, config.message(),
               "in_channels must be out_channels, or of image to video twice as many, got ",
               in_channels, " and ", channels);
  const auto time_channels = config.get<int64_t>("time_embed_dim", 512);
  if (config.has("ofs_embed_dim")) {
    config.require<int64_t>("ofs_embed_dim", time_channels, time_channels);
  }
  const auto patch = config.get<int64_t>("patch_size", 2);
  const auto height = config.get<int64_t>("sample_height", 60);
  const auto width = config.get<int64_t>("sample_width", 90);
  const auto ratio = config.get<int64_t>("temporal_compression_ratio", 4);
  KINORA_CHECK(patch > 0 && ratio > 0 && height >= patch && width >= patch, kConfig,
               config.message(),
               "patch_size and temporal_compression_ratio must be positive, and sample_height and "
               "sample_width at least a patch, got ",
               patch, ", ", ratio, ", ", height, " and ", width);
  const int64_t frames = (config.get<int64_t>("sample_frames", 49) - 1) / ratio + 1;
  const bool is_rotary = config.get<bool>("use_rotary_positional_embeddings", false);
  const bool has_table = config.get<bool>("use_learned_positional_embeddings", false);
  const auto heads = config.get<int64_t>("num_attention_heads", 30);
  return {{"depth", config.get<int64_t>("num_layers", 30)},
          {"hidden", heads * config.get<int64_t>("attention_head_dim", 64)},
          {"heads", heads},
          {"patch", patch},
          {"patch_frames", patch_frames},
          {"mlp_ratio", kMlpRatio},
          {"in_channels", channels},
          {"frames", frames},
          {"height", height},
          {"width", width},
          {"text_channels", config.get<int64_t>("text_embed_dim", 4096)},
          {"text_tokens", config.get<int64_t>("max_text_seq_length", 226)},
          {"position_scale", config.get<double>("spatial_interpolation_scale", 1.875)},
          {"time_position_scale", config.get<double>("temporal_interpolation_scale", 1.0)},
          {"rotary_3d", is_rotary},
          {"learned_positions", has_table},
          {"base_grid", {frames, height / patch, width / patch}},
          {"time_channels", time_channels},
          {"ofs", config.has("ofs_embed_dim") ? kCogOfs : 0.0},
          {"given_embedders", is_shown}};
}

json describe_cogvideox(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  KINORA_CHECK(!model.learn_sigma && !model.text_encoder.any() && own.mlp_ratio == kMlpRatio,
               kConfig,
               "[diffusers] model.learn_sigma must be false, model.text_encoder.layers 0 and "
               "model.mlp_ratio 4 for diffusers, got ",
               model.learn_sigma, ", ", model.text_encoder.layers, " and ", own.mlp_ratio,
               ". Hint: write a .safetensors file, which has our names");
  const bool has_frames = own.patch_frames > 1;
  constexpr int64_t kFrameCompression = 4;
  return {{"activation_fn", "gelu-approximate"},
          {"attention_bias", true},
          {"attention_head_dim", own.hidden / own.heads},
          {"in_channels", model.in_channels + models::channels_beside(model)},
          {"max_text_seq_length", model.text_tokens},
          {"norm_elementwise_affine", true},
          {"norm_eps", kCogNormEpsilon},
          {"num_attention_heads", own.heads},
          {"num_layers", own.depth},
          {"ofs_embed_dim", own.ofs > 0 ? json(own.time_channels) : json()},
          {"out_channels", model.in_channels},
          {"patch_bias", !has_frames},
          {"patch_size", own.patch},
          {"patch_size_t", has_frames ? json(own.patch_frames) : json()},
          {"sample_frames", (own.base_grid[0] - 1) * kFrameCompression + 1},
          {"sample_height", own.base_grid[1] * own.patch},
          {"sample_width", own.base_grid[2] * own.patch},
          {"spatial_interpolation_scale", own.position_scale},
          {"temporal_compression_ratio", kFrameCompression},
          {"temporal_interpolation_scale", own.time_position_scale},
          {"text_embed_dim", model.text_channels},
          {"time_embed_dim", own.time_channels},
          {"use_learned_positional_embeddings", own.learned_positions},
          {"use_rotary_positional_embeddings", own.rotary_3d}};
}

// ---- LTX-Video, likewise ----

constexpr const char* kLtxClass = "LTXVideoTransformer3DModel";
// What LTXPipeline draws by itself: 161 frames of 512 x 704 pixels, as latents.
constexpr int64_t kLtxFrames = 21;
constexpr int64_t kLtxHeight = 16;
constexpr int64_t kLtxWidth = 22;
constexpr int64_t kLtxTokens = 128;
constexpr int64_t kLtxCompression = 32;
constexpr int64_t kLtxFrameCompression = 8;

bool is_ltx(const models::Family& family) {
  return family.diffusers->class_name == kLtxClass;
}

json ltx_recipe(const DiffusersConfig& config) {
  config.require<int64_t>("patch_size", 1, 1);
  config.require<int64_t>("patch_size_t", 1, 1);
  config.require<std::string>("activation_fn", "gelu-approximate", "gelu-approximate");
  config.require<std::string>("qk_norm", "rms_norm_across_heads", "rms_norm_across_heads");
  config.require<bool>("norm_elementwise_affine", false, false);
  config.require<double>("norm_eps", kNormEpsilon, kNormEpsilon);
  config.require<bool>("attention_bias", true, true);
  config.require<bool>("attention_out_bias", true, true);
  const auto channels = config.get<int64_t>("in_channels", 128);
  config.require<int64_t>("out_channels", channels, 128);
  const auto heads = config.get<int64_t>("num_attention_heads", 32);
  const int64_t hidden = heads * config.get<int64_t>("attention_head_dim", 64);
  config.require<int64_t>("cross_attention_dim", hidden, 2048);
  return {{"depth", config.get<int64_t>("num_layers", 28)},
          {"hidden", hidden},
          {"heads", heads},
          {"patch", 1},
          {"mlp_ratio", kMlpRatio},
          {"in_channels", channels},
          {"frames", kLtxFrames},
          {"height", kLtxHeight},
          {"width", kLtxWidth},
          {"compression", kLtxCompression},
          {"frame_compression", kLtxFrameCompression},
          {"text_channels", config.get<int64_t>("caption_channels", 4096)},
          {"text_tokens", kLtxTokens}};
}

json describe_ltx(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  KINORA_CHECK(!model.learn_sigma && !model.text_encoder.any() && own.mlp_ratio == kMlpRatio,
               kConfig,
               "[diffusers] model.learn_sigma must be false, model.text_encoder.layers 0 and "
               "model.mlp_ratio 4 for diffusers, got ",
               model.learn_sigma, ", ", model.text_encoder.layers, " and ", own.mlp_ratio,
               ". Hint: write a .safetensors file, which has our names");
  return {{"activation_fn", "gelu-approximate"},
          {"attention_bias", true},
          {"attention_head_dim", own.hidden / own.heads},
          {"attention_out_bias", true},
          {"caption_channels", model.text_channels},
          {"cross_attention_dim", own.hidden},
          {"in_channels", model.in_channels},
          {"norm_elementwise_affine", false},
          {"norm_eps", kNormEpsilon},
          {"num_attention_heads", own.heads},
          {"num_layers", own.depth},
          {"out_channels", model.in_channels},
          {"patch_size", 1},
          {"patch_size_t", 1},
          {"qk_norm", "rms_norm_across_heads"}};
}

/// kConfig where diffusers' class lacks what `model` is.
void check_multimodal(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  const auto must = [&](bool holds, const char* what, const auto& got) {
    KINORA_CHECK(holds, kConfig, "[diffusers] ", what, " for diffusers, got ", got,
                 ". Hint: write a .safetensors file, which has our names");
  };
  must(own.mlp_ratio == kMlpRatio, "model.mlp_ratio must be 4", own.mlp_ratio);
  must(model.pooled_channels > 0, "model.pooled_channels must be positive", 0);
  must(!model.text_encoder.any(), "model.text_encoder.layers must be 0", model.text_encoder.layers);
  if (!own.rotary_axes.empty()) {
    must(own.patch == kFluxPatch, "model.patch must be 2", own.patch);
    must(own.qk_norm == ops::Switch::kOn, "model.qk_norm must be on", "off");
  }
}

/// A class of diffusers: models::DiffusersFamily's, with its config.json.
struct TransformerClass {
  std::string_view name;
  const char* norm_type;
  int64_t sample_size;  // by default
  bool is_old;          // keys that are left out are as in kOldClass
  /// The keys model.* that it alone has.
  json (*recipe)(const DiffusersConfig& config, int64_t sample_size);
  /// The keys of config.json likewise.
  json (*describe)(const ModelConfig& model);
};
constexpr std::array<TransformerClass, 3> kClasses = {{
    {"DiTTransformer2DModel", "ada_norm_zero", 32, false, dit_recipe, describe_dit},
    {"PixArtTransformer2DModel", "ada_norm_single", 128, false, pixart_recipe, describe_pixart},
    {"LatteTransformer3DModel", "ada_norm_single", 64, true, latte_recipe, describe_latte},
}};

const TransformerClass& class_named(std::string_view name) {
  const auto* const found = std::ranges::find(kClasses, name, &TransformerClass::name);
  KINORA_CHECK(found != kClasses.end(), kInternal, "[diffusers] nobody describes ", name);
  return *found;
}

/// kConfig where diffusers' class lacks what `model` is.
void check_describable(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  const auto must = [&](bool holds, const char* what, const auto& got) {
    KINORA_CHECK(holds, kConfig, "[diffusers] ", what, " for diffusers, got ", got,
                 ". Hint: write a .safetensors file, which has our names");
  };
  must(model.height == model.width, "model.height and model.width must be the same",
       std::to_string(model.height) + " x " + std::to_string(model.width));
  must(own.mlp_ratio == kMlpRatio, "model.mlp_ratio must be 4", own.mlp_ratio);
  must(own.kv_compress == models::KvSampling::kNone, "model.kv_compress must be none", "another");
  must(own.qk_norm != ops::Switch::kOn, "model.qk_norm must be off", "on");
  const double scale = own.position_scale;
  must(scale == static_cast<double>(static_cast<int64_t>(scale)),
       "model.position_scale must be a whole number", scale);
}

}  // namespace

bool is_transformer_of(const DiffusersConfig& config, const models::Family& family) {
  const auto kind = config.get<std::string>("_class_name", "");
  return kind == family.diffusers->class_name ||
         (kind == kOldClass && !family.is_video && !is_multimodal(family) &&
          config.get<std::string>("norm_type", "") ==
              class_named(family.diffusers->class_name).norm_type);
}

std::string transformer_keys(const DiffusersConfig& config, const models::Family& family) {
  if (is_ltx(family)) {
    json model = ltx_recipe(config);
    model.update({{"architecture", family.key}, {"learn_sigma", false}});
    return model.dump();
  }
  if (is_wan(family) || is_hunyuan(family) || is_cogvideox(family)) {
    json model = is_wan(family)       ? wan_recipe(config)
                 : is_hunyuan(family) ? hunyuan_recipe(config)
                                      : cogvideox_recipe(config);
    model.update({{"architecture", family.key}, {"learn_sigma", false}, {"compression", 8}});
    return model.dump();
  }
  if (is_multimodal(family)) {
    json model =
        family.diffusers->class_name == kSd3Class ? sd3_recipe(config) : flux_recipe(config);
    model.update({{"architecture", family.key},
                  {"mlp_ratio", kMlpRatio},
                  {"learn_sigma", false},
                  {"compression", 8}});
    return model.dump();
  }
  const TransformerClass& its = class_named(family.diffusers->class_name);
  const bool is_old = its.is_old || config.get<std::string>("_class_name", "") == kOldClass;
  config.require<std::string>("norm_type", its.norm_type, its.norm_type);
  config.require<std::string>("activation_fn", "gelu-approximate", "gelu-approximate");
  config.require<bool>("attention_bias", true, !is_old);
  config.require<bool>("norm_elementwise_affine", false, is_old);
  const auto epsilon = config.get<double>("norm_eps", kMostNormEpsilon);
  KINORA_CHECK(epsilon > 0 && epsilon <= kMostNormEpsilon, kConfig, config.message(),
               "norm_eps must be at most ", kMostNormEpsilon, " (1e-6 is used), got ", epsilon);
  const auto channels = config.get<int64_t>("in_channels", 4);
  const auto out_channels = config.get<int64_t>("out_channels", channels);
  KINORA_CHECK(out_channels == channels || out_channels == 2 * channels, kConfig, config.message(),
               "out_channels must be in_channels or twice as many, got ", out_channels, " and ",
               channels);
  const auto size = config.get<int64_t>("sample_size", its.sample_size);
  const auto heads = config.get<int64_t>("num_attention_heads", 16);
  json model = its.recipe(config, size);
  model.update({{"architecture", family.key},
                {"depth", config.get<int64_t>("num_layers", 28)},
                {"hidden", heads * config.get<int64_t>("attention_head_dim", 72)},
                {"heads", heads},
                {"patch", config.get<int64_t>("patch_size", 2)},
                {"in_channels", channels},
                {"height", size},
                {"width", size},
                {"mlp_ratio", kMlpRatio},
                {"learn_sigma", out_channels != channels}});
  return model.dump();
}

std::string describe_transformer(const ModelConfig& model, const models::Family& family) {
  if (is_wan(family)) {
    return describe_wan(model).dump();
  }
  if (is_hunyuan(family)) {
    return describe_hunyuan(model).dump();
  }
  if (is_cogvideox(family)) {
    return describe_cogvideox(model).dump();
  }
  if (is_ltx(family)) {
    return describe_ltx(model).dump();
  }
  if (is_multimodal(family)) {
    check_multimodal(model);
    return describe_multimodal(model).dump();
  }
  check_describable(model);
  const models::TransformerConfig& own = model.transformer;
  const TransformerClass& its = class_named(family.diffusers->class_name);
  json config = {{"activation_fn", "gelu-approximate"},
                 {"attention_bias", true},
                 {"attention_head_dim", own.hidden / own.heads},
                 {"dropout", 0.0},
                 {"in_channels", model.in_channels},
                 {"norm_elementwise_affine", false},
                 {"norm_eps", kNormEpsilon},
                 {"norm_type", its.norm_type},
                 {"num_attention_heads", own.heads},
                 {"num_layers", own.depth},
                 {"out_channels", model.out_channels()},
                 {"patch_size", own.patch},
                 {"sample_size", model.height}};
  config.update(its.describe(model));
  return config.dump();
}

}  // namespace kinora::pipelines
