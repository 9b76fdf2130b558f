#include "kinora/inference/decoder.h"

#include <filesystem>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/inference/setup.h"
#include "kinora/pipelines/autoencoder_file.h"

namespace kinora::inference {

std::unique_ptr<models::Autoencoder> open_decoder(const ModelRecipe& recipe,
                                                  const DecoderChoice& choice, at::Device device) {
  const bool of_run = choice.path.empty();
  const std::string& path = of_run ? recipe.autoencoder.path : choice.path;
  if (path.empty()) {
    return nullptr;
  }
  KINORA_CHECK(!of_run || std::filesystem::exists(path), kIo,
               "[sample] the autoencoder of the run's configuration is not at ", path,
               ". Hint: --autoencoder PATH, or --set 'autoencoder.path=\"\"' for latents");
  std::unique_ptr<models::Autoencoder> decoder =
      pipelines::open_autoencoder(path, device, compute_type(recipe.precision));
  KINORA_CHECK(decoder->space().channels == recipe.model.in_channels, kConfig,
               "[sample] the autoencoder ", path, " makes pixels of ", decoder->space().channels,
               " channels, but the model draws ", recipe.model.in_channels);
  decoder->set_memory_budget(
      static_cast<int64_t>(choice.memory_gib.value_or(recipe.autoencoder.memory_gib) * kGiB));
  return decoder;
}

}  // namespace kinora::inference
