#include "kinora/inference/shown_samples.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kinora/data/loader.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/shown_beside.h"
#include "kinora/io/image_grid.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/images.h"

namespace kinora::inference {

namespace {

using ConditionsOf = std::function<pipelines::DrawConditions(int64_t first, int64_t size)>;

/// `conditions`, and what the model is shown of the pictures of the first sample.count samples.
ConditionsOf with_pictures(ConditionsOf conditions, const data::Source& data,
                           const ModelRecipe& recipe, const pipelines::LatentEncoder* latents,
                           const FrameStates* states, at::Device device) {
  const models::ModelShape shape = models::shape_of(recipe.model);
  if (shape.controls == 0 && shape.input == models::ShownInput::kPlain) {
    return conditions;
  }
  const int64_t count = std::min(recipe.sample.count, data.size());
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  data::Batch batch = data::load_samples(data, indices, data::sample_size(recipe.data));
  if (models::shows_frames(shape.input)) {
    batch.sample_index = at::arange(count, at::kLong);
    FrameShowing{.input = shape.input, .ratios = recipe.frame_masks, .states = states}.add_to(
        batch, *latents);
  } else {
    batch.beside = shown_beside(batch, shape.input, latents, device);
  }
  return [conditions = std::move(conditions), control = batch.control, beside = batch.beside,
          image_prompt = batch.image_prompt, device](int64_t first, int64_t size) {
    pipelines::DrawConditions result = conditions(first, size);
    const at::Tensor numbers = at::arange(first, first + size, at::kLong);
    const auto rows = [&](const at::Tensor& all) {
      return all.defined()
                 ? all.index_select(0, numbers.remainder(all.size(0)).to(all.device())).to(device)
                 : all;
    };
    result.conditions.control = rows(control);
    result.conditions.beside = rows(beside);
    result.conditions.image_prompt = rows(image_prompt);
    return result;
  };
}

}  // namespace

ShownSamples shown_samples(const data::Source& data, const ModelRecipe& recipe,
                           const pipelines::TextBatchEncoder* encoder,
                           const pipelines::LatentEncoder* latents, const FrameStates* states,
                           at::Device device) {
  const models::ModelConfig& model = recipe.model;
  ShownSamples shown;
  ConditionsOf conditions;
  if (model.takes_text()) {
    Prompts prompts = prompts_of_data(data, recipe.sample.count);
    for (const Prompt& prompt : prompts.all) {
      shown.captions.push_back(prompt.caption);
    }
    if (prompts.shape.is_ids() && encoder != nullptr) {
      encode(prompts, *encoder);
    }
    conditions = conditions_of_prompts(std::move(prompts), model, clip_fps(recipe.data), device);
  } else {
    conditions = [num_classes = model.num_classes, device](int64_t first, int64_t size) {
      pipelines::DrawConditions result;
      result.conditions.labels =
          at::arange(first, first + size, at::kLong).remainder(num_classes).to(device);
      result.null = null_of(result.conditions, num_classes);
      return result;
    };
  }
  shown.conditions = with_pictures(std::move(conditions), data, recipe, latents, states, device);
  return shown;
}

double clip_fps(const data::DataConfig& config) {
  return config.fps /
         static_cast<double>(data::sample_size(config).choice(0.0F).stride(config.fps));
}

std::vector<io::Image> shown_images(const at::Tensor& pixels) {
  if (pixels.dim() == 4) {
    return pipelines::to_images(pixels);
  }
  // [B, C, T, H, W] -> [B, C, H, T W]
  return pipelines::to_images(pixels.permute({0, 1, 3, 2, 4}).flatten(3));
}

std::vector<io::Image> shown_animation(const at::Tensor& clips) {
  std::vector<io::Image> grids;
  for (int64_t frame = 0; frame < clips.size(2); ++frame) {
    grids.push_back(io::make_grid(pipelines::to_images(clips.select(2, frame))));
  }
  return grids;
}

}  // namespace kinora::inference
