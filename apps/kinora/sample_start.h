#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/sample.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/models/autoencoders/autoencoder.h"

/// What `kinora sample` begins with: --init, --latents, --noise.
namespace kinora::apps {

/// `arguments` as they are meant for such a model: --image is --init of one of pictures.
[[nodiscard]] SampleArguments for_model(SampleArguments arguments,
                                        const models::ModelConfig& model);

/// The pictures of --init, --mask, --control and --ip-image, as inference::read_initial,
/// read_masks, read_controls and read_image_prompts give them; or of a model that is shown given
/// frames those of --image and --last.
struct StartPictures {
  at::Tensor pixels;
  at::Tensor masks;
  at::Tensor references;
  at::Tensor controls;
  std::vector<io::Image> image_prompts;
  std::vector<inference::EndFrames> ends;
};

/// Reads them before anything is computed. kConfig for what does not fit the model, of `recipe`,
/// which has the size that is drawn, or each other; kIo.
[[nodiscard]] StartPictures read_start(const SampleArguments& arguments,
                                       const inference::ModelRecipe& recipe);

/// What the image encoder makes of the pictures of --ip-image, or of given frames where the model
/// reads that; nothing without any.
[[nodiscard]] pipelines::ImagePrompts encode_prompts(const SampleArguments& arguments,
                                                     const StartPictures& pictures,
                                                     const inference::ModelRecipe& recipe,
                                                     at::Device device);

/// Nothing where samples begin with the noise of their seed alone. image_prompts: of
/// encode_prompts(); autoencoder: of models of latents, else null.
[[nodiscard]] std::optional<inference::DrawStart> start_of(
    const SampleArguments& arguments, const StartPictures& pictures,
    const pipelines::ImagePrompts& image_prompts, const inference::ModelRecipe& recipe,
    models::Autoencoder* autoencoder, at::Device device);

/// What decides it, for the drawing's key.
[[nodiscard]] std::string words_of_start(const SampleArguments& arguments);

/// Whether --latents are decoded, and nothing is drawn.
[[nodiscard]] bool only_decodes(const SampleArguments& arguments);

/// Decodes them into --out, without the model's weights. Returns what was written, in words. kIo;
/// kConfig without an autoencoder.
[[nodiscard]] std::string decode_files(const SampleArguments& arguments,
                                       const inference::ModelRecipe& recipe, at::Device device);

}  // namespace kinora::apps
