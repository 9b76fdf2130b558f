#include "kinora/train/compared_input.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/loader.h"
#include "kinora/data/normalise.h"
#include "kinora/data/run_data.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/train/encode_stage.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/micro_batch.h"
#include "kinora/train/validation.h"

namespace kinora::train {

inference::ComparedInput compared_input(const inference::ModelRecipe& recipe,
                                        const diffusion::Objective& objective, int64_t count,
                                        uint64_t seed) {
  KINORA_CHECK(count > 0, kConfig, "[compare] at least one sample is needed, got ", count);
  const std::optional<data::CaptionTokens> tokens = recipe.data.text == data::TextKind::kTokens
                                                        ? inference::caption_tokens(recipe)
                                                        : std::nullopt;
  const data::RunData data = data::open_data(recipe.data, tokens ? &*tokens : nullptr);
  const data::Source& source = data.validation ? *data.validation : *data.train;
  std::vector<int64_t> indices(static_cast<size_t>(std::min(count, source.size())));
  std::iota(indices.begin(), indices.end(), 0);
  const std::unique_ptr<FrozenEncoder> encoder =
      open_encoder(recipe.autoencoder, {&recipe.data}, at::kCPU);
  const std::unique_ptr<inference::FrozenTextEncoder> texts =
      tokens ? inference::open_text_encoder(recipe, *tokens, at::kCPU) : nullptr;
  std::optional<inference::FrameStates> states;
  if (models::shape_of(recipe.model).image_states > 0) {
    states.emplace(recipe.image.encoder, recipe.model, at::kCPU);
  }
  const EncodeStage stage(seed, at::kCPU,
                          {.encoder = encoder ? &encoder->encoder : nullptr,
                           .texts = texts ? &texts->encoder : nullptr,
                           .states = states ? &*states : nullptr,
                           .input = models::shape_of(recipe.model).input,
                           .given = recipe.frame_masks,
                           .compression = recipe.model.frame_compression});
  const MicroBatch samples = micro_batch_of(
      stage.means(data::load_samples(source, indices, data::sample_size(recipe.data))),
      recipe.model);
  return {.batch = validation_batch(objective, data::to_float(samples.images, at::kCPU), 0,
                                    samples.images.size(0), 1, seed),
          .conditions = samples.conditions};
}

}  // namespace kinora::train
