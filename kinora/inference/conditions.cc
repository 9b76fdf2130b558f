#include "kinora/inference/conditions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/io/image_resize.h"
#include "kinora/models/families.h"

namespace kinora::inference {
namespace {

/// The same number for each of `batch` samples.
at::Tensor of_all(int64_t batch, double value) {
  return at::full({batch}, value, at::kFloat);
}

/// Of the texts in a batch.
data::TextShape text_shape(const data::Batch& batch) {
  if (batch.tokens.defined()) {
    return {.length = batch.tokens.size(1)};
  }
  const bool has_text = batch.text.defined();
  return {.length = has_text ? batch.text.size(1) : 0,
          .channels = has_text ? batch.text.size(2) : 0,
          .pooled_channels = batch.pooled.defined() ? batch.pooled.size(1) : 0};
}

/// Aesthetics from 1 to 10, of SDXL's refiner: what diffusers tells it of prompts, and of none.
constexpr double kScore = 6.0;
constexpr double kNullScore = 2.5;

/// How large pictures were and how they were cut to `cut`; where nobody says it, that all of the
/// picture is there.
void add_framing(const at::Tensor& original_size, const io::ImageSize& cut,
                 diffusion::Conditions& conditions) {
  const int64_t batch = conditions.pooled.size(0);
  conditions.height = of_all(batch, static_cast<double>(cut.height));
  conditions.width = of_all(batch, static_cast<double>(cut.width));
  conditions.score = of_all(batch, kScore);
  conditions.crop = at::zeros({batch, 2}, at::kFloat);
  if (!original_size.defined()) {
    conditions.original_size = at::stack({conditions.height, conditions.width}, 1);
    return;
  }
  conditions.original_size = original_size;
  const auto* const size = original_size.const_data_ptr<float>();
  auto* const crop = conditions.crop.mutable_data_ptr<float>();
  for (int64_t i = 0; i < 2 * batch; i += 2) {
    KINORA_CHECK(size[i] > 0.0F && size[i + 1] > 0.0F, kConfig,
                 "[train] the model is told how large pictures were before they were cut, which "
                 "these latents do not say. Hint: kinora data encode into a new --out; files of "
                 "latents say it in their metadata height and width");
    const io::ImageSize offset = io::center_crop_offset(
        {static_cast<int64_t>(size[i]), static_cast<int64_t>(size[i + 1])}, cut.height, cut.width);
    crop[i] = static_cast<float>(offset.height);
    crop[i + 1] = static_cast<float>(offset.width);
  }
}

}  // namespace

ClipSize clip_size(const at::Tensor& images) {
  return {.frames = images.dim() == 5 ? images.size(2) : 1,
          .height = images.size(-2),
          .width = images.size(-1)};
}

diffusion::ClipExtent extent_of(const models::ModelConfig& model, const ClipSize& size) {
  const models::ModelShape its = models::shape_of(model);
  return {.height = static_cast<double>(size.height * model.compression),
          .width = static_cast<double>(size.width * model.compression),
          .latent_frames = static_cast<double>(size.frames),
          .tokens = ceil_div(size.frames, its.patch_frames) * ceil_div(size.height, its.patch) *
                    ceil_div(size.width, its.patch)};
}

at::Tensor unseen_samples(const models::ModelConfig& model, int64_t batch) {
  std::vector<int64_t> sizes = model.sample_shape();
  sizes.insert(sizes.begin(), batch);
  return at::empty({1}).expand(sizes);
}

std::vector<int64_t> sizes_beside(const models::ModelShape& model, at::IntArrayRef samples) {
  std::vector<int64_t> sizes = samples.vec();
  sizes[1] = model.channels_beside;
  if (model.references > 0) {
    sizes.resize(3, 0);
    sizes[2] = model.references;
    sizes.insert(sizes.end(), samples.end() - 2, samples.end());
  }
  return sizes;
}

data::Batch unseen_batch(const models::ModelConfig& model, const at::Tensor& samples) {
  const int64_t size = samples.size(0);
  data::Batch batch{.images = samples};
  batch.sample_index = at::arange(size, at::kLong);
  batch.labels = at::zeros({size}, at::kLong);
  const models::ModelShape its = models::shape_of(model);
  const ClipSize place = clip_size(samples);
  if (its.controls > 0) {
    batch.control = at::empty(
        {size, 3 * its.controls, place.height * model.compression, place.width * model.compression},
        at::kByte);
  }
  if (its.channels_beside > 0) {
    batch.beside = at::empty(sizes_beside(its, samples.sizes()), at::kFloat);
  }
  if (its.image_states > 0) {
    batch.image_prompt = at::empty({size, its.image_states, its.image_channels}, at::kFloat);
  }
  if (model.takes_text()) {
    if (model.text_encoder.any()) {
      batch.tokens = at::zeros({size, model.text_tokens}, at::kLong);
    } else {
      batch.text = at::empty({size, model.text_tokens, model.text_channels}, at::kFloat);
    }
    batch.text_lengths = at::full({size}, model.text_tokens, at::kLong);
    batch.pooled = at::empty({size, model.pooled_width()}, at::kFloat);
  }
  batch.fps = of_all(size, kImageFps);
  return batch;
}

void check_texts(const data::TextShape& texts, const models::ModelConfig& model) {
  if (!model.takes_text()) {
    return;
  }
  if (model.text_encoder.any()) {
    KINORA_CHECK(
        texts.is_ids() && texts.length <= model.text_tokens, kConfig, "[train] ", model.name,
        " has a text encoder of its own, and the data must have tokens, up to ", model.text_tokens,
        " (model.text_tokens), got ", texts.is_ids() ? std::to_string(texts.length) : "none",
        ". Hint: data.text=tokens and text.tokenizer");
    return;
  }
  KINORA_CHECK(!texts.is_ids(), kConfig, "[train] the data's texts are tokens, and nothing makes ",
               "of them what ", model.name,
               " is conditioned on. Hint: model.text_encoder, or text.encoder");
  const bool pooled = models::family_of(model).conditions.pooled;
  const int64_t channels = pooled ? texts.pooled_channels : texts.channels;
  KINORA_CHECK(
      channels > 0, kConfig, "[train] ", model.name,
      " is conditioned on texts, and the data has none", pooled ? " with a pooled vector" : "",
      ". Hint: data.text=tokens with text.encoder or model.text_encoder, or data.text_embeddings");
  KINORA_CHECK(channels == model.text_channels, kConfig,
               "[train] the data's texts have vectors of ", channels,
               " numbers, but model.text_channels is ", model.text_channels);
  KINORA_CHECK(model.pooled_channels == 0 || texts.pooled_channels == model.pooled_channels,
               kConfig, "[train] the data's texts have pooled vectors of ", texts.pooled_channels,
               " numbers, but model.pooled_channels is ", model.pooled_channels,
               ". Hint: take the text encoder that the model was made for");
  KINORA_CHECK(pooled || texts.length <= model.text_tokens, kConfig,
               "[train] the data's texts have up to ", texts.length,
               " tokens, but model.text_tokens is ", model.text_tokens);
}

diffusion::Conditions conditions_of(const data::Batch& batch, const models::ModelConfig& model) {
  const models::FamilyConditions& wanted = models::family_of(model).conditions;
  diffusion::Conditions conditions;
  if (wanted.labels) {
    conditions.labels = batch.labels;
  }
  check_texts(text_shape(batch), model);
  if (model.text_encoder.any()) {
    conditions.tokens = batch.tokens;
    conditions.text_lengths = batch.text_lengths;
  } else if (wanted.text) {
    conditions.text = batch.text;
    conditions.text_lengths = batch.text_lengths;
  } else if (wanted.pooled) {
    conditions.pooled = batch.pooled;
  }
  const int64_t batch_size = batch.images.size(0);
  const ClipSize size = clip_size(batch.images);
  const bool is_image = size.frames == 1;
  conditions.control = batch.control;
  conditions.beside = batch.beside;
  conditions.image_prompt = batch.image_prompt;
  if (wanted.fps) {
    conditions.fps = is_image ? of_all(batch_size, kImageFps) : batch.fps;
  }
  const auto number = [batch_size](int64_t value) {
    return of_all(batch_size, static_cast<double>(value));
  };
  if (wanted.size) {
    conditions.height = number(size.height * model.compression);
    conditions.width = number(size.width * model.compression);
  }
  if (wanted.num_frames) {
    conditions.num_frames = number(is_image ? 1 : size.frames * model.frame_compression);
  }
  if (model.pooled_channels > 0) {
    conditions.pooled = batch.pooled;
  }
  if (wanted.micro && model.pooled_channels > 0) {
    add_framing(
        batch.original_size,
        {.height = size.height * model.compression, .width = size.width * model.compression},
        conditions);
  }
  return conditions;
}

diffusion::Conditions to_device(const diffusion::Conditions& conditions, at::Device device) {
  diffusion::Conditions result;
  for (const auto& [name, tensor] : diffusion::kConditions) {
    if ((conditions.*tensor).defined()) {
      result.*tensor = (conditions.*tensor).to(device, /*non_blocking=*/true);
    }
  }
  return result;
}

void drop_conditions(diffusion::Conditions& conditions, const at::Tensor& dropped,
                     int64_t null_class) {
  if (conditions.labels.defined()) {
    conditions.labels =
        at::where(dropped, at::full_like(conditions.labels, null_class), conditions.labels);
  } else {
    conditions.null_text = dropped;
  }
}

void drop_pictures(diffusion::Conditions& conditions, const at::Tensor& draws, double rate) {
  const at::Tensor dropped = (draws >= 0.5 * rate).logical_and(draws < 1.5 * rate);
  std::vector<int64_t> places(static_cast<size_t>(conditions.beside.dim()), 1);
  places[0] = -1;
  conditions.beside = at::where(dropped.view(places), 0.0, conditions.beside);
}

void take_null_score(const diffusion::Conditions& conditions, diffusion::Conditions& null) {
  if (conditions.score.defined()) {
    null.score = at::full_like(conditions.score, kNullScore);
  }
}

diffusion::Conditions null_of(const diffusion::Conditions& conditions, int64_t null_class) {
  diffusion::Conditions null;
  if (conditions.labels.defined()) {
    null.labels = at::full_like(conditions.labels, null_class);
  } else {
    const at::Tensor& text = conditions.text.defined()     ? conditions.text
                             : conditions.tokens.defined() ? conditions.tokens
                                                           : conditions.pooled;
    null.null_text = at::ones({text.size(0)}, text.options().dtype(at::kBool));
  }
  take_null_score(conditions, null);
  return null;
}

}  // namespace kinora::inference
