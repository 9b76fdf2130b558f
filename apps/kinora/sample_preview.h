#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "apps/kinora/options/sample.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/draw.h"

namespace kinora::apps {

/// Writes OUT/preview.png while samples are drawn: the first ones of the batch as the model sees
/// them now, side by side. Each is there whole. It goes when drawing ends.
class Previews {
 public:
  /// decoder: borrowed, of models of latents where no --preview-decoder is named; may be null.
  /// kConfig for latents that nothing decodes.
  Previews(const SampleArguments& arguments, const inference::ModelRecipe& recipe,
           models::Autoencoder* decoder, at::Device device);
  Previews(const Previews&) = delete;
  Previews& operator=(const Previews&) = delete;
  ~Previews();

  /// Writes one if the step is one of those.
  void show(const pipelines::DrawPreview& preview);

 private:
  std::filesystem::path path_;
  int64_t every_;
  std::unique_ptr<models::Autoencoder> own_;
  models::Autoencoder* decoder_;
  at::Device device_;
};

}  // namespace kinora::apps
