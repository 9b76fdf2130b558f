#include "apps/kinora/sample_start.h"

#include <memory>

#include "kinora/core/error.h"
#include "kinora/data/file_stamp.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/sample_files.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/pipelines/decode.h"

namespace kinora::apps {
namespace {

constexpr double kUsualStrength = 0.8;  // of diffusers' Stable Diffusion
constexpr int64_t kDecodedAtOnce = 4;

/// A file and its state; empty: there is none.
std::string named(const std::string& path) {
  return path.empty() ? "" : path + " " + std::to_string(data::file_stamp(path));
}

}  // namespace

std::optional<inference::DrawStart> start_of(const SampleArguments& arguments,
                                             const inference::ModelRecipe& recipe,
                                             models::Autoencoder* autoencoder, at::Device device) {
  const models::ModelConfig& model = recipe.model;
  inference::DrawStart start;
  if (!arguments.noise.empty()) {
    start.noise = inference::read_samples(arguments.noise, "noise", model);
  }
  if (!arguments.latents.empty()) {
    start.data = inference::read_samples(arguments.latents, "latents", model);
  } else if (!arguments.init.empty()) {
    start.data = inference::read_initial(arguments.init, model, autoencoder, device);
  }
  start.strength = arguments.strength.value_or(kUsualStrength);
  return start.noise.defined() || start.data.defined() ? std::optional(start) : std::nullopt;
}

std::string words_of_start(const SampleArguments& arguments) {
  std::string words;
  for (const std::string& path : arguments.init) {
    words += named(path) + " ";
  }
  words += named(arguments.latents);
  if (!words.empty()) {
    words += " strength " + std::to_string(arguments.strength.value_or(kUsualStrength));
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
