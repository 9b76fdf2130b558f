#include "kinora/pipelines/open_sora2_pipeline.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kinora/checkpoint/weights_paths.h"
#include "kinora/core/error.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/text_encoder_file.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;

/// A published form. Sizes are those of clips of 16:9, in pixels.
struct Form {
  std::string_view transformer;  ///< its file
  std::string_view autoencoder;
  models::LatentSpace space;  ///< where that file is not there
  int64_t frames;
  int64_t height;
  int64_t width;
};

models::LatentSpace space_of(int64_t channels, int64_t compression, bool first_frame_alone) {
  models::LatentSpace space;
  space.channels = channels;
  space.compression = compression;
  space.frame_compression = 4;
  space.first_frame_alone = first_frame_alone;
  return space;
}

const std::array<Form, 2>& forms() {
  static const std::array<Form, 2> all = {
      {{checkpoint::kOpenSora2Files[0], "hunyuan_vae.safetensors", space_of(16, 8, true), 129, 192,
        336},
       {checkpoint::kOpenSora2Files[1], "F32T4C128_AE.safetensors", space_of(128, 32, false), 128,
        576, 1024}}};
  return all;
}

constexpr int64_t kCaptionTokens = 512;
constexpr double kFps = 24.0;
constexpr double kMotion = 4.0;
/// Of so many dims of a head frame, row and column turn these: of the published 128, 16, 56 and 56.
constexpr int64_t kHeadUnit = 32;
constexpr int64_t kFrameDims = 4;
constexpr int64_t kSideDims = 14;

/// One of them, where it lies.
struct FormFile {
  const Form* form;
  fs::path file;
};

/// That of a path to the folder or the file.
std::optional<FormFile> find_form(const fs::path& path) {
  const bool is_folder = fs::is_directory(path);
  const fs::path file = is_folder ? checkpoint::open_sora2_file(path) : path;
  const auto* const form = std::ranges::find(forms(), file.filename().string(), &Form::transformer);
  if (form == forms().end()) {
    return std::nullopt;
  }
  // By itself the file is weights as any others.
  const fs::path whole = fs::absolute(file);
  const bool has_encoder = fs::is_directory(whole.parent_path() / kOpenSora2Encoders.back());
  return is_folder || has_encoder ? std::optional(FormFile{form, whole}) : std::nullopt;
}

int64_t count_blocks(const WeightsFile& file, const std::string& before,
                     const std::string& behind) {
  int64_t number = 0;
  while (file.contains(before + std::to_string(number) + behind)) {
    ++number;
  }
  return number;
}

/// The transformer of weights under our names.
json model_of(const WeightsFile& file, const Form& form, const models::LatentSpace& space) {
  const std::string first = "joint_blocks.0.x_block.";
  const std::vector<int64_t> embedder = file.shape("x_embedder.proj.weight");
  const int64_t hidden = embedder.front();
  const int64_t head = file.shape(first + "attn.q_norm.weight").front();
  const int64_t values = c10::multiply_integers(embedder) / std::max<int64_t>(hidden, 1);
  const int64_t patch =
      std::llround(std::sqrt(static_cast<double>(values) / static_cast<double>(space.channels)));
  KINORA_CHECK(head > 0 && head % kHeadUnit == 0 && hidden % head == 0, kConfig, "[pipeline] ",
               file.path(), " must have heads of a multiple of ", kHeadUnit,
               " dims, which rotary positions turn as in the published ones, got ", head,
               " of a width of ", hidden,
               ". Hint: --config with a recipe that has model.rotary_axes");
  KINORA_CHECK(patch * patch * space.channels == values, kConfig, "[pipeline] ", file.path(),
               " reads patches of ", values, " values, which are none of an autoencoder of ",
               space.channels, " channels. Hint: take both from one folder");
  const int64_t unit = head / kHeadUnit;
  return {{"architecture", "open_sora2"},
          {"depth", count_blocks(file, "joint_blocks.", ".x_block.attn.qkv.weight")},
          {"parallel_depth", count_blocks(file, "single_blocks.", ".linear1.weight")},
          {"hidden", hidden},
          {"heads", hidden / head},
          {"mlp_ratio", static_cast<double>(file.shape(first + "mlp.fc1.weight").front()) /
                            static_cast<double>(hidden)},
          {"patch", patch},
          {"in_channels", space.channels},
          {"given_embedders", file.contains("cond_embedder.proj.weight")},
          {"rotary_axes", {kFrameDims * unit, kSideDims * unit, kSideDims * unit}},
          {"text_channels", file.shape("context_embedder.weight").back()},
          {"text_tokens", kCaptionTokens},
          {"pooled_channels", file.shape("y_embedder.mlp.0.weight").back()},
          {"learn_sigma", false},
          {"num_classes", 1},
          {"frames", models::latent_frames(space, form.frames)},
          {"height", form.height / space.compression},
          {"width", form.width / space.compression},
          {"compression", space.compression},
          {"frame_compression", space.frame_compression}};
}

}  // namespace

std::optional<Pipeline> find_open_sora2(const fs::path& path) {
  const std::optional<FormFile> found = find_form(path);
  if (!found) {
    return std::nullopt;
  }
  const fs::path folder = found->file.parent_path();
  return Pipeline{.folder = path,
                  .class_name = "Open-Sora 2",
                  .recipe = open_sora2_recipe,
                  .text = PipelineText{.tokenizer = folder / kOpenSora2Encoders[1],
                                       .encoder = folder,  // which has several
                                       .max_tokens = kCaptionTokens,
                                       .scores = prompts::OpenSoraScores{.motion = kMotion},
                                       .wording = prompts::OpenSoraWording::kFrameRate}};
}

std::string open_sora2_recipe(const Pipeline& pipeline) {
  const FormFile found = find_form(pipeline.folder).value();
  const fs::path autoencoder = found.file.parent_path() / found.form->autoencoder;
  const models::LatentSpace space =
      fs::exists(autoencoder) ? latent_space(autoencoder) : found.form->space;
  const WeightsFile file = open_weights(found.file, /*averaged=*/false);
  const json recipe = {
      {"run", {{"dir", "runs/open-sora2"}}},
      {"model", model_of(file, *found.form, space)},
      {"data", {{"fps", kFps}}},
      {"objective", {{"kind", "flow"}, {"shift_by_tokens", {1, 3}}, {"token_shift", "opensora2"}}},
      {"sample",
       {{"method", "euler"},
        {"steps", 50},
        {"guidance", 7.5},
        {"guidance_alternates_after", 10},
        {"given_guidance", 3.0}}},
      // As it was trained: configs/diffusion/train/stage1_i2v.py.
      {"frame_masks",
       {{"weights", {{"t2v", 1}, {"i2v_head", 5}, {"i2v_loop", 1}, {"i2v_tail", 1}}}}},
      {"autoencoder", {{"path", autoencoder.string()}}},
      {"ema", {{"decays", json::array()}}}};
  return recipe.dump(2);
}

}  // namespace kinora::pipelines
