#include "apps/kinora/sample_upsample.h"

#include <ATen/ops/cat.h>

#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "apps/kinora/sample_first_frames.h"
#include "kinora/core/error.h"
#include "kinora/data/file_stamp.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing_group.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/latent_upsampler_file.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTimes = 2;             // as large, of a side
constexpr double kRefinedStrength = 0.4;  // as diffusers' documentation has it

fs::path small_folder(const SampleArguments& arguments) {
  return fs::path(arguments.out) / "small";
}
fs::path upsampled_file(const SampleArguments& arguments) {
  return small_folder(arguments) / "upsampled.safetensors";
}

inference::SampleSize half_size(const inference::ModelRecipe& recipe) {
  const models::ModelConfig& model = recipe.model;
  const int64_t unit = model.compression * models::shape_of(model).patch;
  const auto half = [&](const char* name, int64_t latents) {
    const int64_t pixels = latents * model.compression;
    KINORA_CHECK(pixels % (kTimes * unit) == 0, kConfig, "[sample] with --upsample ", name,
                 " must be a multiple of ", kTimes * unit, ", got ", pixels);
    return pixels / kTimes;
  };
  return {.frames = model.frames * model.frame_compression,
          .height = half("--height", model.height),
          .width = half("--width", model.width)};
}

std::string autoencoder_of(const SampleArguments& arguments, const inference::ModelRecipe& recipe) {
  return inference::decoder_path(recipe, {.path = arguments.autoencoder});
}

}  // namespace

SampleArguments small_arguments(const SampleArguments& arguments,
                                const inference::ModelRecipe& recipe) {
  const models::ModelConfig& model = recipe.model;
  KINORA_CHECK(model.is_video() && !autoencoder_of(arguments, recipe).empty(), kConfig,
               "[sample] --upsample doubles latents of clips with an autoencoder, which ",
               models::name_of(model),
               model.is_video() ? " has not. Hint: --autoencoder PATH" : " does not draw");
  KINORA_CHECK(arguments.init.empty() && arguments.latents.empty() && arguments.noise.empty() &&
                   arguments.options.pieces == 1,
               kConfig,
               "[sample] --upsample begins with what it draws small: --init, --latents, --noise "
               "and --loop do not go with it");
  const int64_t channels = pipelines::latent_upsampler_config(arguments.upsample).in_channels;
  KINORA_CHECK(channels == model.in_channels, kConfig, "[sample] --upsample ", arguments.upsample,
               " doubles latents of ", channels, " channels, and this model draws ",
               model.in_channels);
  SampleArguments small = arguments;
  small.options.size = half_size(recipe);
  small.out = small_folder(arguments).string();
  small.save_latents = true;
  small.upsample.clear();
  small.strength.reset();
  small.only.reset();
  small.judge = false;
  small.cache_price = false;
  // What `kinora sample --like` of one of them needs.
  for (const char* name : {"--upsample", "--upsample-steps", "--upsample-adain", "--upsample-tones",
                           "--strength", "--only"}) {
    small.given.erase(name);
  }
  small.given["--height"] = {std::to_string(small.options.size.height)};
  small.given["--width"] = {std::to_string(small.options.size.width)};
  return small;
}

void upsample_small(const SampleArguments& arguments, const inference::ModelRecipe& recipe,
                    at::Device device) {
  inference::ModelRecipe small = recipe;
  inference::set_size(half_size(recipe), 0.0, small);
  const at::Tensor latents = inference::read_samples(
      small_folder(arguments) / "latents.safetensors", "latents", small.model);
  const auto upsampler = pipelines::open_latent_upsampler(arguments.upsample, device);
  const models::LatentSpace space = pipelines::latent_space(autoencoder_of(arguments, recipe));
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : latents.split(1)) {
    rows.push_back(
        models::upsampled(*upsampler, space, row.to(device),
                          {.adain = arguments.upsample_adain, .tones = arguments.upsample_tones})
            .cpu());
  }
  const at::Tensor all = at::cat(rows);
  const io::SafetensorsTensor tensor{.name = "latents",
                                     .dtype = DType::kF32,
                                     .shape = all.sizes().vec(),
                                     .data = device::bytes_of(all)};
  io::write_safetensors(upsampled_file(arguments), std::span(&tensor, 1));
}

SampleArguments refining_arguments(SampleArguments arguments) {
  arguments.latents = upsampled_file(arguments).string();
  arguments.strength = arguments.strength.value_or(kRefinedStrength);
  arguments.options.steps = arguments.upsample_steps;
  arguments.upsample.clear();
  return arguments;
}

std::string words_of_upsampled(const SampleArguments& arguments,
                               const inference::DrawingKey& small) {
  return "upsampled by " + arguments.upsample + " " +
         std::to_string(data::file_stamp(arguments.upsample)) + ", adain " +
         std::to_string(arguments.upsample_adain) + ", tones " +
         std::to_string(arguments.upsample_tones) + ", strength " +
         std::to_string(arguments.strength.value_or(kRefinedStrength)) + ", " + origin_of(small);
}

}  // namespace kinora::apps
