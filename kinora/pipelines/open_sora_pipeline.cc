#include "kinora/pipelines/open_sora_pipeline.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/checkpoint/weights_paths.h"
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
  bool has_windows;             ///< it says kernel_size
  std::string_view name;
  std::string_view architecture;
  int64_t text_tokens;  ///< model_max_length where config.json does not say it
  int64_t frames;       ///< in pixels, as height and width
  int64_t height;
  int64_t width;
  bool is_flow;
  int64_t steps;
  double guidance;
  double fps;
  std::optional<double> aesthetic;  ///< the score that its prompts end with
};
constexpr std::array<Version, 4> kVersions = {{
    {"STDiT", false, "Open-Sora 1.0", "stdit", 120, 16, 256, 256, false, 100, 7.0, 8.0, {}},
    {"STDiT2", false, "Open-Sora 1.1", "stdit2", 200, 16, 240, 426, false, 100, 7.0, 24.0, {}},
    {"STDiT3", false, "Open-Sora 1.2", "stdit3", 300, 51, 240, 426, true, 30, 7.0, 24.0, 6.5},
    {"STDiT3", true, "Open-Sora 1.3", "stdit3", 300, 113, 720, 1280, true, 30, 7.5, 24.0, {}},
}};
/// Open-Sora 1.0 has no config.json on its hub. The names of its files say the size of clips in
/// pixels: OpenSora-v1-HQ-16x512.pth.
constexpr std::string_view kSmall = "16x256";
constexpr std::string_view kLarge = "16x512";

/// A transformer of Open-Sora.
struct Found {
  const Version* version;
  DiffusersConfig config;  ///< empty of 1.0 as the hub has it
  int64_t height;          ///< of its clips, in pixels
  int64_t width;
};

/// That of config.json in `folder`.
std::optional<Found> find_described(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path)) {
    return std::nullopt;
  }
  DiffusersConfig config(path);
  const auto* const found = std::ranges::find_if(kVersions, [&config](const Version& version) {
    return config.is("model_type", version.model_type) &&
           config.has("kernel_size") == version.has_windows;
  });
  if (found == kVersions.end()) {
    return std::nullopt;
  }
  return Found{.version = found,
               .config = std::move(config),
               .height = found->height,
               .width = found->width};
}

/// Open-Sora 1.0's file in `folder`. kConfig for one that does not say a size which was published.
std::optional<Found> find_first(const fs::path& folder) {
  const fs::path file = checkpoint::open_sora_file(folder);
  if (file.empty()) {
    return std::nullopt;
  }
  const std::string name = file.filename().string();
  const bool is_large = name.find(kLarge) != std::string::npos;
  KINORA_CHECK(is_large || name.find(kSmall) != std::string::npos, kConfig, "[pipeline] ", file,
               " must say ", kSmall, " or ", kLarge,
               " in its name, the size of its clips. Hint: write a config.json beside it "
               "(model_type STDiT, input_size, space_scale)");
  return Found{.version = kVersions.begin(),
               .config = DiffusersConfig("{}", "pipeline", file.string()),
               .height = is_large ? 512 : 256,
               .width = is_large ? 512 : 256};
}

std::optional<Found> find_transformer(const fs::path& path) {
  for (const fs::path& folder : {path / "transformer", path}) {
    if (auto found = find_described(folder)) {
      return found;
    }
    if (auto found = find_first(folder)) {
      return found;
    }
  }
  return std::nullopt;
}

/// What only STDiT has. Its size is input_size of latents, else the given one; its positions in
/// space are twice as close in clips of 256 pixels.
json first_recipe(const DiffusersConfig& config, int64_t height, int64_t width) {
  const auto size = config.get<std::vector<int64_t>>("input_size", {0, height, width});
  KINORA_CHECK(size.size() == 3, kConfig, config.message(),
               "input_size must be frames, rows and columns of latents, got ",
               config.written("input_size"));
  constexpr int64_t kUnscaled = 64;
  const double usual = std::max(size[1], size[2]) >= kUnscaled ? 1.0 : 0.5;
  json model = {{"height", size[1]},
                {"width", size[2]},
                {"position_scale", config.get<double>("space_scale", usual)},
                {"time_position_scale", config.get<double>("time_scale", 1.0)}};
  if (size[0] > 0) {
    model["frames"] = size[0];
  }
  return model;
}

/// What only 1.3 has. kernel_size counts rows, columns and frames, -1 all of them.
json window_recipe(const DiffusersConfig& config) {
  constexpr int64_t kAll = 65536;
  auto window = config.get<std::vector<int64_t>>("kernel_size", {});
  KINORA_CHECK(window.size() == 3, kConfig, config.message(),
               "kernel_size must be rows, columns and frames, got ", config.written("kernel_size"));
  std::ranges::replace(window, -1, kAll);
  config.require<bool>("use_spatial_rope", true, false);
  return {{"window", {window[2], window[0], window[1]}},
          {"rotary_3d", true},
          {"given_embedders", true}};
}

/// The transformer of config.json; the size is that of the version.
json model_recipe(const DiffusersConfig& config, const Found& found,
                  const models::LatentSpace& space) {
  const Version& version = *found.version;
  const auto patch = config.get<std::vector<int64_t>>("patch_size", {1, 2, 2});
  KINORA_CHECK(patch.size() == 3 && patch[0] == 1 && patch[1] == patch[2] && patch[1] > 0, kConfig,
               "[pipeline] ", config.path(), ": patch_size must be 1, n, n, got ",
               json(patch).dump());
  for (const char* key : {"skip_temporal", "no_temporal_pos_emb", "skip_y_embedder"}) {
    config.require<bool>(key, false, false);
  }
  // Open-Sora 1.1 was trained with queries and keys that are normed behind their rotation.
  const bool is_legacy = version.model_type == "STDiT2";
  config.require<bool>("qk_norm_legacy", is_legacy, is_legacy);
  const auto whole_patches = [&patch](int64_t latents) { return latents / patch[1] * patch[1]; };
  json model = {{"architecture", version.architecture},
                {"depth", config.get<int64_t>("depth", 28)},
                {"hidden", config.get<int64_t>("hidden_size", 1152)},
                {"heads", config.get<int64_t>("num_heads", 16)},
                {"mlp_ratio", config.get<double>("mlp_ratio", 4.0)},
                {"patch", patch[1]},
                {"in_channels", config.get<int64_t>("in_channels", version.has_windows ? 16 : 4)},
                {"learn_sigma", config.get<bool>("pred_sigma", true)},
                {"qk_norm", config.get<bool>("qk_norm", version.has_windows) ? "on" : "off"},
                {"text_channels", config.get<int64_t>("caption_channels", 4096)},
                {"text_tokens", config.get<int64_t>("model_max_length", version.text_tokens)},
                {"frames", models::latent_frames(space, version.frames)},
                {"height", whole_patches(found.height / space.compression)},
                {"width", whole_patches(found.width / space.compression)},
                {"compression", space.compression},
                {"num_classes", 1}};
  if (version.model_type == "STDiT") {
    model.update(first_recipe(config, model["height"], model["width"]));
  } else {
    model["base_pixels"] = config.get<int64_t>("input_sq_size", 512);
  }
  if (version.has_windows) {
    model.update(window_recipe(config));
  }
  return model;
}

json objective_of(const Version& version, const models::LatentSpace& space) {
  if (!version.is_flow) {
    return {{"kind", "iddpm"}, {"timesteps", 1000}};
  }
  json objective = {{"kind", "flow"}, {"toward_data", true}, {"shift_by_size", true}};
  if (version.has_windows && space.chunk_frames > 0) {
    objective["shift_chunk"] = models::latent_frames(space, space.chunk_frames);
  }
  return objective;
}

json sample_of(const Version& version) {
  json sample = {{"steps", version.steps}, {"guidance", version.guidance}};
  if (version.is_flow) {
    sample["method"] = "euler";
  } else {
    sample.update({{"method", "ddpm"}, {"spacing", "dit"}, {"guidance_channels", "first_three"}});
  }
  if (version.has_windows) {
    sample.update(
        {{"guidance_alternates_after", 10}, {"guidance_rescale", 0.7}, {"given_guidance", 5.0}});
  }
  return sample;
}

}  // namespace

std::optional<Pipeline> find_open_sora(const fs::path& path) {
  const std::optional<Found> found = find_transformer(path);
  if (!found) {
    return std::nullopt;
  }
  const Version* const version = found->version;
  // T5's folders have their tokenizer in them.
  const bool is_apart = fs::exists(path / "tokenizer");
  return Pipeline{
      .folder = path,
      .class_name = std::string(version->name),
      .recipe = open_sora_recipe,
      .text = PipelineText{
          .tokenizer = is_apart ? "tokenizer" : "text_encoder",
          .encoder = "text_encoder",
          .max_tokens = found->config.get<int64_t>("model_max_length", version->text_tokens),
          .has_own_null = true,
          .scores = prompts::OpenSoraScores{.aesthetic = version->aesthetic},
          .wording = version->has_windows ? prompts::OpenSoraWording::kWords
                                          : prompts::OpenSoraWording::kNumbers}};
}

std::string open_sora_recipe(const Pipeline& pipeline) {
  const Found found = find_transformer(pipeline.folder).value();
  const Version& version = *found.version;
  const fs::path vae = pipeline.folder / "vae";
  models::LatentSpace space;
  if (fs::exists(vae)) {
    space = latent_space(vae);
  } else if (version.is_flow) {
    space.frame_compression = 4;
    space.chunk_frames = 17;
    space.chunks_share_frame = version.has_windows;
    space.first_frame_alone = true;
  }
  // All but the first learned from given frames; the share is that of 1.2.
  const double image_head = version.model_type == "STDiT" ? 0.0 : 0.05;
  const json recipe = {{"run", {{"dir", "runs/open-sora"}}},
                       {"model", model_recipe(found.config, found, space)},
                       {"data", {{"fps", version.fps}}},
                       {"objective", objective_of(version, space)},
                       {"sample", sample_of(version)},
                       {"frame_masks", {{"image_head", image_head}}},
                       {"autoencoder", {{"path", vae.string()}}},
                       {"ema", {{"decays", json::array()}}}};
  return recipe.dump(2);
}

}  // namespace kinora::pipelines
