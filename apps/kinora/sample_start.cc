#include "apps/kinora/sample_start.h"

#include <ATen/ops/cat.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/file_stamp.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/sample_files.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/decode.h"

namespace kinora::apps {
namespace {

constexpr double kUsualStrength = 0.8;  // of diffusers' Stable Diffusion
constexpr int64_t kDecodedAtOnce = 4;

/// A file and its state; empty: there is none.
std::string named(const std::string& path) {
  return path.empty() ? "" : path + " " + std::to_string(data::file_stamp(path));
}

/// How much of what samples begin with is drawn anew.
double strength_of(const SampleArguments& arguments) {
  return arguments.strength.value_or(arguments.mask.empty() ? kUsualStrength : 1.0);
}

/// That of --ip-adapter.
std::filesystem::path image_encoder_of(const SampleArguments& arguments) {
  return arguments.ip_encoder.empty() ? pipelines::find_image_encoder(arguments.ip_adapter)
                                      : std::filesystem::path(arguments.ip_encoder);
}

/// Of what encodes pictures for a model of latents.
std::optional<models::LatentSpace> space_of(const SampleArguments& arguments,
                                            const inference::ModelRecipe& recipe) {
  const std::string encoder = inference::decoder_path(recipe, {.path = arguments.autoencoder});
  return encoder.empty() ? std::nullopt : std::optional(pipelines::latent_space(encoder));
}

/// Of a model that is shown given frames beside what it draws.
StartPictures read_frames(const SampleArguments& arguments, const inference::ModelRecipe& recipe) {
  const inference::DrawOptions& options = arguments.options;
  KINORA_CHECK(arguments.init.empty() && arguments.mask.empty() && !arguments.strength &&
                   arguments.latents.empty() && options.video.empty() && options.at.empty() &&
                   options.given_edit == 0.0 && options.given_frames == "head",
               kConfig,
               "[sample] this model is shown the frames that it goes on from: --init, --mask, "
               "--strength, --latents, --video, --at, --given-edit and --given-frames are for "
               "others");
  StartPictures pictures;
  pictures.ends = inference::read_end_frames(options.given, options.last, recipe.model);
  if (models::shape_of(recipe.model).reads_image_prompt) {
    inference::FrameStates::check(recipe.image.encoder, recipe.model);
  }
  return pictures;
}

}  // namespace

SampleArguments for_model(SampleArguments arguments, const models::ModelConfig& model) {
  if (!model.is_video() && !arguments.options.given.empty()) {
    KINORA_CHECK(arguments.init.empty(), kConfig, "[sample] give only one of --image and --init");
    arguments.init = std::exchange(arguments.options.given, {});
  }
  KINORA_CHECK(
      model.is_video() || (arguments.options.last.empty() && arguments.options.video.empty() &&
                           arguments.options.at.empty()),
      kConfig,
      "[sample] --last, --video and --at are frames of clips, and this model draws pictures. "
      "Hint: --image FILE");
  return arguments;
}

StartPictures read_start(const SampleArguments& arguments, const inference::ModelRecipe& recipe) {
  const models::ModelConfig& model = recipe.model;
  const models::ShownInput input = models::shape_of(model).input;
  StartPictures pictures;
  if (!arguments.references.empty()) {
    pictures.references =
        inference::read_subjects(arguments.references, model, space_of(arguments, recipe));
  }
  if (models::shows_frames(input)) {
    return read_frames(arguments, recipe);
  }
  const bool is_subjects = input == models::ShownInput::kSubjects;
  KINORA_CHECK(input == models::ShownInput::kPlain || is_subjects || !arguments.init.empty(),
               kConfig, "[sample] this model changes a given picture. Hint: --image FILE",
               models::fills_in(input) ? " --mask FILE" : "");
  KINORA_CHECK(!models::fills_in(input) || !arguments.mask.empty(), kConfig,
               "[sample] this model fills in a part of a picture. Hint: --mask FILE");
  KINORA_CHECK(!models::changes_picture(input) ||
                   (arguments.mask.empty() && !arguments.strength && arguments.latents.empty()),
               kConfig,
               "[sample] this model is shown the picture that it changes: --mask, --strength and "
               "--latents are for others");
  const bool is_reference = input == models::ShownInput::kReference;
  KINORA_CHECK(is_reference || !arguments.keep_image_size, kConfig,
               "[sample] --keep-image-size is for models that are shown a picture as tokens, as "
               "Flux Kontext, and not for ",
               models::name_of(model));
  if (!arguments.control.empty() || models::shape_of(model).controls > 0) {
    pictures.controls = inference::read_controls(arguments.control, model);
  }
  pictures.image_prompts = inference::read_image_prompts(arguments.ip_images, model);
  if (!pictures.image_prompts.empty()) {
    pipelines::check_image_encoder(image_encoder_of(arguments), model);
  }
  if (arguments.init.empty()) {
    return pictures;
  }
  const std::optional<models::LatentSpace> space = space_of(arguments, recipe);
  if (!arguments.mask.empty()) {
    pictures.masks = inference::read_masks(arguments.mask, arguments.init, model, space);
  }
  pictures.pixels = is_reference ? inference::read_references(arguments.init, model, space,
                                                              arguments.keep_image_size)
                                 : inference::read_initial(arguments.init, model, space);
  return pictures;
}

pipelines::ImagePrompts encode_prompts(const SampleArguments& arguments,
                                       const StartPictures& pictures,
                                       const inference::ModelRecipe& recipe, at::Device device) {
  if (!pictures.ends.empty() && models::shape_of(recipe.model).reads_image_prompt) {
    const inference::FrameStates states(recipe.image.encoder, recipe.model, device);
    std::vector<at::Tensor> clips;
    for (const inference::EndFrames& ends : pictures.ends) {
      clips.push_back(states.of_clip(ends).cpu());
    }
    return {.given = at::cat(clips)};
  }
  if (pictures.image_prompts.empty()) {
    return {};
  }
  return pipelines::encode_image_prompts(pictures.image_prompts, image_encoder_of(arguments),
                                         recipe.model, device);
}

std::optional<inference::DrawStart> start_of(const SampleArguments& arguments,
                                             const StartPictures& pictures,
                                             const pipelines::ImagePrompts& image_prompts,
                                             const inference::ModelRecipe& recipe,
                                             models::Autoencoder* autoencoder, at::Device device) {
  const models::ModelConfig& model = recipe.model;
  const models::ShownInput input = models::shape_of(model).input;
  inference::DrawStart start{.strength = strength_of(arguments),
                             .control = pictures.controls,
                             .image_prompts = image_prompts};
  if (!arguments.noise.empty()) {
    start.noise = inference::read_samples(arguments.noise, "noise", model);
  }
  if (!arguments.latents.empty()) {
    start.data = inference::read_samples(arguments.latents, "latents", model);
  }
  if (!pictures.ends.empty()) {
    start.beside = inference::shown_frames(pictures.ends, model, autoencoder, device);
  }
  if (pictures.references.defined()) {
    start.beside = inference::shown_subjects(pictures.references, model, autoencoder, device);
  }
  if (pictures.pixels.defined()) {
    const bool is_beside =
        input != models::ShownInput::kPlain && input != models::ShownInput::kSubjects;
    if (is_beside) {
      start.beside =
          inference::shown_beside(pictures.pixels, pictures.masks, model, autoencoder, device);
    }
    const bool begins = !is_beside || (models::fills_in(input) && start.strength < 1.0);
    if (begins) {
      start.data = inference::as_drawn(pictures.pixels, autoencoder, device);
    }
    if (!is_beside && pictures.masks.defined()) {
      start.mask = inference::mask_of_drawn(pictures.masks, model);
    }
  }
  const bool any = start.noise.defined() || start.data.defined() || start.beside.defined() ||
                   start.control.defined() || start.image_prompts.given.defined();
  return any ? std::optional(start) : std::nullopt;
}

std::string words_of_start(const SampleArguments& arguments) {
  std::string words;
  for (const std::string& path : arguments.init) {
    words += named(path) + " ";
  }
  words += arguments.keep_image_size ? "of its own size " : "";
  for (const std::string& path : arguments.mask) {
    words += "mask " + named(path) + " ";
  }
  words += named(arguments.latents);
  if (!words.empty()) {
    words += " strength " + std::to_string(strength_of(arguments));
  }
  for (const std::string& path : arguments.references) {
    words += " reference " + named(path);
  }
  for (const std::string& path : arguments.control) {
    words += " control " + named(path);
  }
  for (const std::string& path : arguments.controlnets) {
    words += " by " + std::filesystem::absolute(path).lexically_normal().string();
  }
  if (!arguments.ip_adapter.empty()) {
    words += " IP-Adapter " + named(arguments.ip_adapter) + " scale " +
             std::to_string(arguments.ip_scale) + " by " + image_encoder_of(arguments).string();
  }
  for (const std::string& path : arguments.ip_images) {
    words += " shown " + named(path);
  }
  return arguments.noise.empty() ? words : words + " noise " + named(arguments.noise);
}

bool only_decodes(const SampleArguments& arguments) {
  return !arguments.latents.empty() && arguments.strength.value_or(0.0) == 0.0;
}

std::string decode_files(const SampleArguments& arguments, const inference::ModelRecipe& recipe,
                         at::Device device) {
  const auto decoder = inference::open_decoder(
      recipe, {.path = arguments.autoencoder, .memory_gib = arguments.memory_budget}, device);
  KINORA_CHECK(decoder != nullptr, kConfig,
               "[sample] --latents without --strength are decoded, which wants an autoencoder. "
               "Hint: --autoencoder PATH");
  const at::Tensor latents = inference::read_samples(arguments.latents, "latents", recipe.model);
  const int64_t count = latents.size(0);
  const bool is_clip = recipe.model.is_video() && recipe.model.frames > 1;
  inference::SampleFiles files(
      {.folder = arguments.out,
       .kind = is_clip ? inference::SampleKind::kClips : inference::SampleKind::kImages,
       .labels = std::vector<std::optional<int64_t>>(static_cast<size_t>(count)),
       .fps = inference::clip_fps(recipe.data),
       .format = arguments.format});
  const io::FileLock lock = inference::claim_folder(
      arguments.out, count,
      [&](int64_t of_first) {
        return inference::DrawingKey{
            {"count", std::to_string(of_first)},
            {"decoded", named(arguments.latents)},
            {"decoder", inference::decoder_path(recipe, {.path = arguments.autoencoder})}};
      },
      arguments.overwrite);
  for (int64_t first = 0; first < count; first += kDecodedAtOnce) {
    const int64_t size = std::min(kDecodedAtOnce, count - first);
    files.write(first, pipelines::decode_latents(*decoder, latents.narrow(0, first, size), device,
                                                 recipe.sample.sampling.batch_invariant));
  }
  return files.finish();
}

}  // namespace kinora::apps
