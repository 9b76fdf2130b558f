#include <ATen/core/Tensor.h>

#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/kinora.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/pipelines/decode.h"
#include "kinora/pipelines/draw.h"
#include "kinora/train/prompts.h"
#include "kinora/train/setup.h"
#include "kinora/train/shown_samples.h"
#include "kinora/train/trained_model.h"

namespace kinora {
namespace {

void check(const DrawOptions& options, const models::ModelConfig& model) {
  const bool has_texts = !options.captions.empty() || !options.text_embeddings.empty();
  KINORA_CHECK(options.captions.empty() || options.text_embeddings.empty(), kConfig,
               "[draw] give only one of captions and text_embeddings");
  KINORA_CHECK(model.takes_text() || !has_texts, kConfig,
               "[draw] this model is conditioned on classes, not on texts. Hint: give classes");
  KINORA_CHECK(!model.takes_text() || options.classes.empty(), kConfig,
               "[draw] this model is conditioned on texts, not on classes. Hint: give captions");
  KINORA_CHECK(options.count >= 0, kConfig, "[draw] count must not be negative, got ",
               options.count);
}

at::Tensor draw_classes(train::TrainedModel& trained, const train::RunConfig& config,
                        const DrawOptions& options) {
  const models::ModelConfig& model = config.model;
  std::vector<int64_t> classes = options.classes;
  if (classes.empty()) {
    classes.resize(static_cast<size_t>(model.num_classes));
    std::iota(classes.begin(), classes.end(), 0);
  }
  const auto num_classes = static_cast<int64_t>(classes.size());
  return pipelines::sample_classes(*trained.model, train::sampler_of(config, trained.objective),
                                   config.sample.sampling,
                                   {.classes = std::move(classes),
                                    .count = options.count > 0 ? options.count : num_classes,
                                    .batch = options.batch,
                                    .seed = options.seed,
                                    .graphs = trained.graphs},
                                   model.sample_shape(), model.num_classes, trained.device);
}

train::Prompts prompts_for(const train::RunConfig& config, const DrawOptions& options) {
  if (!options.captions.empty()) {
    return train::prompts_of_captions(options.captions, config.data);
  }
  if (!options.text_embeddings.empty()) {
    return train::prompts_of_file(options.text_embeddings);
  }
  return train::prompts_of_data(*train::open_data(config.data).train,
                                options.count > 0 ? options.count : config.sample.count);
}

at::Tensor draw_texts(train::TrainedModel& trained, const train::RunConfig& config,
                      const DrawOptions& options) {
  train::Prompts prompts = prompts_for(config, options);
  const auto num_prompts = static_cast<int64_t>(prompts.all.size());
  return pipelines::draw(*trained.model, train::sampler_of(config, trained.objective),
                         config.sample.sampling,
                         {.count = options.count > 0 ? options.count : num_prompts,
                          .batch = options.batch,
                          .seed = options.seed,
                          .graphs = trained.graphs},
                         config.model.sample_shape(),
                         train::conditions_of_prompts(std::move(prompts), config.model,
                                                      train::clip_fps(config.data), trained.device),
                         trained.device);
}

}  // namespace

at::Tensor draw_tensor(Model& model, const DrawOptions& options) {
  train::TrainedModel& trained = model.trained();
  check(options, trained.config.model);
  train::RunConfig config = trained.config;
  pipelines::SamplingConfig& sampling = config.sample.sampling;
  sampling.steps = options.steps > 0 ? options.steps : sampling.steps;
  sampling.guidance = options.guidance.value_or(sampling.guidance);
  const at::Tensor samples = config.model.takes_text() ? draw_texts(trained, config, options)
                                                       : draw_classes(trained, config, options);
  return model.decoder() == nullptr
             ? samples
             : pipelines::decode_latents(*model.decoder(), samples, trained.device);
}

std::vector<io::Image> draw(Model& model, const DrawOptions& options) {
  const int64_t channels = model.trained().config.model.in_channels;
  KINORA_CHECK(model.decoder() != nullptr || channels == 3 || channels == 1, kConfig,
               "[draw] images have 3 channels or 1, but the model draws latents of ", channels,
               ". Hint: load it with the override autoencoder.path=PATH, or use draw_tensor");
  return train::shown_images(draw_tensor(model, options));
}

}  // namespace kinora
