#include "kinora/pipelines/diffusers_transformer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kinora/checkpoint/weights_paths.h"
#include "kinora/core/error.h"
#include "kinora/diffusion/schedule.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/diffusers_scheduler.h"
#include "kinora/pipelines/pipeline.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using nlohmann::json;

constexpr const char* kSchedulerFile = "scheduler/scheduler_config.json";
/// What all were before they had a class each.
constexpr const char* kOldClass = "Transformer2DModel";
/// The first version that has these classes.
constexpr const char* kVersion = "0.30.0";
constexpr double kMlpRatio = 4.0;  // diffusers has no other
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

const TransformerClass& class_of(const models::Family& family) {
  const auto* const found =
      std::ranges::find(kClasses, family.diffusers->class_name, &TransformerClass::name);
  KINORA_CHECK(found != kClasses.end(), kInternal, "[diffusers] nobody describes ",
               family.diffusers->class_name);
  return *found;
}

/// The family that config.json is of.
const models::Family& family_in(const DiffusersConfig& config) {
  const auto kind = config.get<std::string>("_class_name", "");
  const auto norm = config.get<std::string>("norm_type", "");
  std::string known;
  for (const models::Family& family : models::families()) {
    if (family.diffusers) {
      const TransformerClass& its = class_of(family);
      if (kind == its.name || (kind == kOldClass && norm == its.norm_type && !family.is_video)) {
        return family;
      }
      known += (known.empty() ? "" : " or ") + family.diffusers->class_name;
    }
  }
  throw_error(ErrorKind::kConfig, "[diffusers] ", config.path(), ": _class_name must be ", known,
              ", got ", io::in_quotes(kind),
              kind == kOldClass ? " of norm_type " + io::in_quotes(norm) : "");
}

json recipe_of(const DiffusersConfig& config) {
  const models::Family& family = family_in(config);
  const TransformerClass& its = class_of(family);
  const bool is_old = its.is_old || config.get<std::string>("_class_name", "") == kOldClass;
  config.require<std::string>("norm_type", its.norm_type, its.norm_type);
  config.require<std::string>("activation_fn", "gelu-approximate", "gelu-approximate");
  config.require<bool>("attention_bias", true, !is_old);
  config.require<bool>("norm_elementwise_affine", false, is_old);
  const auto channels = config.get<int64_t>("in_channels", 4);
  const auto out_channels = config.get<int64_t>("out_channels", channels);
  KINORA_CHECK(out_channels == channels || out_channels == 2 * channels, kConfig, "[diffusers] ",
               config.path(), ": out_channels must be in_channels or twice as many, got ",
               out_channels, " and ", channels);
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
  // A recipe names a run; nothing was averaged here.
  return {{"run", {{"dir", "runs/diffusers"}}},
          {"model", std::move(model)},
          {"ema", {{"decays", json::array()}}}};
}

/// kConfig where diffusers' class lacks what `model` is.
void check_describable(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  const auto must = [&](bool holds, const char* what, const auto& got) {
    KINORA_CHECK(holds, kConfig, "[diffusers] ", what, " for diffusers, got ", got,
                 ". Hint: write a .safetensors file, which has our names");
  };
  const auto has = [](const models::Family& family) { return family.diffusers.has_value(); };
  must(has(models::family_of(model)),
       ("the model must be one of " + models::families_that(has)).c_str(), models::name_of(model));
  must(model.height == model.width, "model.height and model.width must be the same",
       std::to_string(model.height) + " x " + std::to_string(model.width));
  must(own.mlp_ratio == kMlpRatio, "model.mlp_ratio must be 4", own.mlp_ratio);
  must(model.time_scale == 1.0, "times must be 0 to 999 (objective.kind=iddpm)",
       "a factor on them of " + std::to_string(model.time_scale));
  must(own.kv_compress == models::KvSampling::kNone, "model.kv_compress must be none", "another");
  must(own.qk_norm != ops::Switch::kOn, "model.qk_norm must be off", "on");
  const double scale = own.position_scale;
  must(scale == static_cast<double>(static_cast<int64_t>(scale)),
       "model.position_scale must be a whole number", scale);
}

json describe(const ModelConfig& model) {
  const models::TransformerConfig& own = model.transformer;
  const TransformerClass& its = class_of(models::family_of(model));
  json config = {{"_class_name", its.name},
                 {"_diffusers_version", kVersion},
                 {"activation_fn", "gelu-approximate"},
                 {"attention_bias", true},
                 {"attention_head_dim", own.hidden / own.heads},
                 {"dropout", 0.0},
                 {"in_channels", model.in_channels},
                 {"norm_elementwise_affine", false},
                 {"norm_eps", 1e-6},
                 {"norm_type", its.norm_type},
                 {"num_attention_heads", own.heads},
                 {"num_layers", own.depth},
                 {"out_channels", model.out_channels()},
                 {"patch_size", own.patch},
                 {"sample_size", model.height}};
  config.update(its.describe(model));
  return config;
}

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  io::write_file_atomic(path, text);
}

void write_json(const fs::path& path, const json& values) {
  write_text(path, values.dump(2) + "\n");
}

}  // namespace

checkpoint::WeightsFile open_weights(const fs::path& path, bool averaged) {
  checkpoint::WeightsFile file = checkpoint::WeightsFile::open(path, averaged);
  if (const auto naming = models::find_diffusers_naming(file.names())) {
    file.rename(*naming);
  }
  return file;
}

std::string diffusers_recipe(const fs::path& path) {
  const fs::path folder = checkpoint::diffusers_folder(path);
  if (folder.empty()) {
    return "";
  }
  json recipe = recipe_of(DiffusersConfig(folder / "config.json"));
  if (const auto pipeline = find_pipeline(path); pipeline && pipeline->text) {
    recipe["model"]["text_tokens"] = pipeline->text->max_tokens;
  }
  if (const fs::path scheduler = (folder / ".." / kSchedulerFile).lexically_normal();
      fs::exists(scheduler)) {
    recipe["objective"] = json::parse(objective_recipe(scheduler));
  }
  return recipe.dump(2);
}

void write_diffusers(const fs::path& folder, checkpoint::LateTensors tensors,
                     const ModelConfig& model, const diffusion::ObjectiveConfig& objective,
                     const checkpoint::OutputOptions& options) {
  check_describable(model);
  const checkpoint::LateTensors renamed =
      checkpoint::take_renamed(tensors, models::diffusers_naming(model));
  const fs::path transformer = folder / "transformer";
  fs::create_directories(transformer);
  checkpoint::write_weights(transformer / "diffusion_pytorch_model.safetensors", renamed, options);
  if (!tensors.empty()) {
    checkpoint::OutputOptions beside = options;
    beside.max_shard_bytes = 0;
    checkpoint::write_weights(transformer / checkpoint::kBesideDiffusers, tensors, beside);
  }
  write_json(transformer / "config.json", describe(model));
  const models::DiffusersFamily& family = *models::family_of(model).diffusers;
  if (!family.pipeline.empty()) {
    write_text(folder / kSchedulerFile, describe_scheduler(objective, kVersion));
    write_json(folder / "model_index.json", {{"_class_name", family.pipeline},
                                             {"_diffusers_version", kVersion},
                                             {"scheduler", {"diffusers", "DDIMScheduler"}},
                                             {"transformer", {"diffusers", family.class_name}},
                                             {"vae", {"diffusers", "AutoencoderKL"}}});
  }
}

}  // namespace kinora::pipelines
