#include "kinora/inference/decoder.h"

#include <filesystem>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/autoencoder_file.h"

namespace kinora::inference {

std::string decoder_path(const ModelRecipe& recipe, const DecoderChoice& choice) {
  const std::string& path = choice.path.empty() ? recipe.autoencoder.path : choice.path;
  KINORA_CHECK(path.empty() || !choice.path.empty() || std::filesystem::exists(path), kIo,
               "[sample] the autoencoder that the model's recipe names is not at ", path,
               ". Hint: --autoencoder PATH, or --set 'autoencoder.path=\"\"' for latents");
  return path;
}

void check_decoder(const ModelRecipe& recipe, const DecoderChoice& choice) {
  const std::string path = decoder_path(recipe, choice);
  if (path.empty()) {
    return;
  }
  const int64_t channels = pipelines::latent_space(path).channels;
  KINORA_CHECK(channels == recipe.model.in_channels, kConfig, "[sample] the autoencoder ", path,
               " makes pixels of ", channels, " channels, but the model draws ",
               recipe.model.in_channels);
}

std::unique_ptr<models::Autoencoder> open_decoder(const ModelRecipe& recipe,
                                                  const DecoderChoice& choice, at::Device device) {
  check_decoder(recipe, choice);
  const std::string path = decoder_path(recipe, choice);
  if (path.empty()) {
    return nullptr;
  }
  std::unique_ptr<models::Autoencoder> decoder =
      pipelines::open_autoencoder(path, device, compute_type(recipe.precision));
  decoder->set_memory_budget(
      static_cast<int64_t>(choice.memory_gib.value_or(recipe.autoencoder.memory_gib) * kGiB));
  decoder->set_decoded_before(models::shape_of(recipe.model).decoded_before);
  const AutoencoderOptions& options = recipe.autoencoder;
  decoder->set_decode_noise(
      {.level = options.decode_level,
       .mixed = options.decode_noise < 0.0 ? options.decode_level : options.decode_noise});
  return decoder;
}

}  // namespace kinora::inference
