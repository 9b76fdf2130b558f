#include <ATen/core/Tensor.h>

#include <optional>

#include "kinora/core/error.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/kinora.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/decode.h"

namespace kinora {

at::Tensor draw_tensor(Model& model, const DrawOptions& options) {
  inference::TrainedModel& trained = model.trained();
  inference::Drawing drawing(trained,
                             {{.classes = options.classes,
                               .captions = options.captions,
                               .text_embeddings = options.text_embeddings,
                               .count = options.count,
                               .seed = options.seed,
                               .guidance = options.guidance}},
                             {.batch = options.batch, .steps = options.steps});
  if (!options.references.empty()) {
    const models::ModelConfig& shown = drawing.recipe().model;
    const auto space =
        model.decoder() == nullptr ? std::nullopt : std::optional(model.decoder()->space());
    drawing.set_start({.beside = inference::shown_subjects(
                           inference::read_subjects(options.references, shown, space), shown,
                           model.decoder(), trained.device)});
  }
  const at::Tensor samples = drawing.draw();
  return model.decoder() == nullptr
             ? samples
             : pipelines::decode_latents(*model.decoder(), samples, trained.device,
                                         drawing.recipe().sample.sampling.batch_invariant);
}

std::vector<io::Image> draw(Model& model, const DrawOptions& options) {
  const int64_t channels = model.trained().recipe.model.in_channels;
  KINORA_CHECK(model.decoder() != nullptr || channels == 3 || channels == 1, kConfig,
               "[draw] images have 3 channels or 1, but the model draws latents of ", channels,
               ". Hint: load it with the override autoencoder.path=PATH, or use draw_tensor");
  return inference::shown_images(draw_tensor(model, options));
}

}  // namespace kinora
