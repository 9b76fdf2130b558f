#include "kinora/pipelines/open_sora_pipeline.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A version of Open-Sora with the defaults of its configs' inference/sample.py.
struct Version {
  std::string_view model_type;  ///< of config.json
  std::string_view name;
  std::string_view architecture;
  int64_t text_tokens;  ///< model_max_length where config.json does not say it
  int64_t frames;       ///< in pixels, as height and width
  int64_t height;
  int64_t width;
  bool is_flow;
  int64_t steps;
  double guidance;
};
constexpr std::array<Version, 2> kVersions = {{
    {"STDiT2", "Open-Sora 1.1", "stdit2", 200, 16, 240, 426, false, 100, 7.0},
    {"STDiT3", "Open-Sora 1.2", "stdit3", 300, 51, 240, 426, true, 30, 7.0},
}};
constexpr double kFps = 24.0;
constexpr double kAestheticScore = 6.5;

const Version* find_version(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path)) {
    return nullptr;
  }
  const auto type = DiffusersConfig(path).get<std::string>("model_type", "");
  const auto* const found = std::ranges::find(kVersions, type, &Version::model_type);
  return found == kVersions.end() ? nullptr : found;
}

fs::path transformer_of(const fs::path& folder) {
  return fs::is_regular_file(folder / "transformer/config.json") ? folder / "transformer" : folder;
}

/// The transformer of config.json; the size is that of the version.
json model_recipe(const DiffusersConfig& config, const Version& version,
                  const models::LatentSpace& space) {
  const auto patch = config.get<std::vector<int64_t>>("patch_size", {1, 2, 2});
  KINORA_CHECK(patch.size() == 3 && patch[0] == 1 && patch[1] == patch[2] && patch[1] > 0, kConfig,
               "[pipeline] ", config.path(), ": patch_size must be 1, n, n, got ",
               json(patch).dump());
  for (const char* key : {"skip_temporal", "no_temporal_pos_emb"}) {
    config.require<bool>(key, false, false);
  }
  // Open-Sora 1.1 was trained with queries and keys that are normed behind their rotation.
  config.require<bool>("qk_norm_legacy", !version.is_flow, !version.is_flow);
  const auto whole_patches = [&patch](int64_t latents) { return latents / patch[1] * patch[1]; };
  return {{"architecture", version.architecture},
          {"depth", config.get<int64_t>("depth", 28)},
          {"hidden", config.get<int64_t>("hidden_size", 1152)},
          {"heads", config.get<int64_t>("num_heads", 16)},
          {"mlp_ratio", config.get<double>("mlp_ratio", 4.0)},
          {"patch", patch[1]},
          {"in_channels", config.get<int64_t>("in_channels", 4)},
          {"learn_sigma", config.get<bool>("pred_sigma", true)},
          {"qk_norm", config.get<bool>("qk_norm", false) ? "on" : "off"},
          {"text_channels", config.get<int64_t>("caption_channels", 4096)},
          {"text_tokens", config.get<int64_t>("model_max_length", version.text_tokens)},
          {"base_pixels", config.get<int64_t>("input_sq_size", 512)},
          {"frames", models::latent_frames(space, version.frames)},
          {"height", whole_patches(version.height / space.compression)},
          {"width", whole_patches(version.width / space.compression)},
          {"compression", space.compression},
          {"num_classes", 1}};
}

json objective_of(const Version& version) {
  if (version.is_flow) {
    return {{"kind", "flow"}, {"toward_data", true}, {"shift_by_size", true}};
  }
  return {{"kind", "iddpm"}, {"timesteps", 1000}};
}

json sample_of(const Version& version) {
  json sample = {{"steps", version.steps}, {"guidance", version.guidance}};
  if (version.is_flow) {
    sample["method"] = "euler";
  } else {
    sample.update({{"method", "ddpm"}, {"spacing", "dit"}, {"guidance_channels", "first_three"}});
  }
  return sample;
}

}  // namespace

std::optional<Pipeline> find_open_sora(const fs::path& path) {
  const fs::path transformer = transformer_of(path);
  const Version* const version = find_version(transformer);
  if (version == nullptr) {
    return std::nullopt;
  }
  const DiffusersConfig config(transformer / "config.json");
  // T5's folders have their tokenizer in them.
  const bool is_apart = fs::exists(path / "tokenizer");
  return Pipeline{
      .folder = path,
      .class_name = std::string(version->name),
      .text = PipelineText{
          .tokenizer = is_apart ? "tokenizer" : "text_encoder",
          .encoder = "text_encoder",
          .max_tokens = config.get<int64_t>("model_max_length", version->text_tokens),
          .has_learned_null = true,
          .scores = prompts::OpenSoraScores{
              .aesthetic = version->is_flow ? std::optional(kAestheticScore) : std::nullopt}}};
}

std::string open_sora_recipe(const Pipeline& pipeline) {
  const fs::path folder = transformer_of(pipeline.folder);
  const Version& version = *find_version(folder);
  const fs::path vae = pipeline.folder / "vae";
  models::LatentSpace space;
  if (fs::exists(vae)) {
    space = latent_space(vae);
  } else if (version.is_flow) {
    space.frame_compression = 4;
    space.chunk_frames = 17;
    space.first_frame_alone = true;
  }
  const json recipe = {
      {"run", {{"dir", "runs/open-sora"}}},
      {"model", model_recipe(DiffusersConfig(folder / "config.json"), version, space)},
      {"data", {{"fps", kFps}}},
      {"objective", objective_of(version)},
      {"sample", sample_of(version)},
      {"autoencoder", {{"path", vae.string()}}},
      {"ema", {{"decays", json::array()}}}};
  return recipe.dump(2);
}

}  // namespace kinora::pipelines
