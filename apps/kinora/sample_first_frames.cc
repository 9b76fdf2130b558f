#include "apps/kinora/sample_first_frames.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "kinora/core/error.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/trained_model.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/shown_input.h"

namespace kinora::apps {
namespace {

constexpr const char* kFolder = "first-frames";

/// kConfig unless the model can begin clips with a picture.
void check_takes_first_frame(const inference::ModelRecipe& recipe) {
  const models::ModelConfig& model = recipe.model;
  KINORA_CHECK(model.is_video() && model.frames > 1, kConfig,
               "[sample] --image-model draws first frames of clips, and ", models::name_of(model),
               " draws pictures");
  if (models::shows_frames(models::shape_of(model).input)) {
    return;
  }
  inference::check_takes_given(model);
  KINORA_CHECK(recipe.frame_masks.any(), kConfig,
               "[sample] --image-model draws first frames, and this model was never given frames "
               "while it trained (frame_masks). Hint: one that goes on from pictures");
}

/// That of pictures of the shape of `clips`, of about as many pixels as `pictures` has.
inference::SampleSize size_for(const models::ModelConfig& pictures,
                               const models::ModelConfig& clips) {
  if (!models::family_of(pictures).takes_any_size) {
    return {};
  }
  const auto unit = static_cast<double>(pictures.compression * models::shape_of(pictures).patch);
  const auto own = static_cast<double>(pictures.height * pictures.width) *
                   static_cast<double>(pictures.compression * pictures.compression);
  const double scale = std::sqrt(own / static_cast<double>(clips.height * clips.width));
  const auto side = [&](int64_t latents) {
    const double units = std::round(static_cast<double>(latents) * scale / unit);
    return static_cast<int64_t>(std::max(units, 1.0) * unit);
  };
  return {.frames = 0, .height = side(clips.height), .width = side(clips.width)};
}

}  // namespace

SampleArguments first_frame_arguments(const SampleArguments& arguments,
                                      const inference::ModelRecipe& clips) {
  check_takes_first_frame(clips);
  KINORA_CHECK(
      arguments.request.text_embeddings.empty() &&
          (!arguments.request.captions.empty() || !arguments.captions_file.empty()),
      kConfig,
      "[sample] --image-model draws first frames from captions, got none. Hint: --prompt TEXT");
  SampleArguments pictures;
  pictures.checkpoint = arguments.image_model;
  pictures.request = {.captions = arguments.request.captions,
                      .wildcards = arguments.request.wildcards,
                      .count = arguments.request.count,
                      .seed = arguments.request.seed};
  pictures.captions_file = arguments.captions_file;
  pictures.only = arguments.only;
  pictures.options.batch = arguments.options.batch;
  pictures.options.ranks = arguments.options.ranks;
  pictures.out = (std::filesystem::path(arguments.out) / kFolder).string();
  pictures.overwrite = arguments.overwrite;
  pictures.memory_budget = arguments.memory_budget;
  pictures.device = arguments.device;
  pictures.precision = arguments.precision;
  pictures.quantise = arguments.quantise;
  pictures.offload = arguments.offload;
  pictures.vram_budget = arguments.vram_budget;
  pictures.threads = arguments.threads;
  pictures.deterministic = arguments.deterministic;
  pictures.verbose = arguments.verbose;
  const models::ModelConfig model =
      inference::read_recipe(arguments.image_model, {.device = arguments.device}).model;
  KINORA_CHECK(!model.is_video() && model.takes_text(), kConfig,
               "[sample] --image-model must name a model that draws pictures from captions, got ",
               models::name_of(model));
  pictures.options.size = size_for(model, clips.model);
  // What `kinora sample --like` of one of them needs.
  pictures.given = {{"--checkpoint", {arguments.image_model}},
                    {"--seed", {std::to_string(arguments.request.seed)}}};
  for (const auto& [name, pixels] : {std::pair("--height", pictures.options.size.height),
                                     std::pair("--width", pictures.options.size.width)}) {
    if (pixels > 0) {
      pictures.given[name] = {std::to_string(pixels)};
    }
  }
  for (const char* name : {"--count", "--device", "--precision", "--quantise", "--deterministic"}) {
    if (const auto found = arguments.given.find(name); found != arguments.given.end()) {
      pictures.given.insert(*found);
    }
  }
  return pictures;
}

std::string origin_of(inference::DrawingKey key) {
  key.erase("count");
  key.erase("classes or captions");
  io::Checksum sum;
  for (const auto& [name, value] : key) {
    const std::string line = name + " " + value + "\n";
    sum.update(std::as_bytes(std::span(line)));
  }
  return "drawn, checksum " + sum.hex();
}

}  // namespace kinora::apps
