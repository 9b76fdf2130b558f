#include "kinora/inference/frozen_text_encoder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/inference/fitting_text_encoder.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::inference {
namespace {

pipelines::TextBatchEncoder batches_of(models::TextEncoder& encoder, const TextOptions& text) {
  return pipelines::TextBatchEncoder(
      encoder, text.micro_batch > 0 ? text.micro_batch : TextOptions::kMicroBatch);
}

/// Has the encoder read padding behind texts where the model's reads it.
void fill_texts(models::TextEncoder& encoder, const ModelRecipe& recipe,
                const data::CaptionTokens& tokens) {
  if (models::fills_captions(recipe.model)) {
    encoder.set_fill({.length = tokens.max_length, .id = tokens.tokenizer->pad_id().value_or(0)});
  }
}

}  // namespace

void check_text_encoder(const ModelRecipe& recipe, const data::CaptionTokens& tokens) {
  const std::string& path = recipe.text.encoder;
  const auto outlined = pipelines::outlined_text_encoder(path);
  const models::TextEncoder& encoder = *outlined;
  const models::ModelConfig& model = recipe.model;
  KINORA_CHECK(encoder.picture_side() == 0, kConfig, "[text] text.encoder, ", path,
               ", reads a picture with each caption, which only kinora sample shows it, with a "
               "folder of a pipeline. Hint: data.text=file with states that were made before");
  const bool pooled = models::family_of(model).conditions.pooled;
  const int64_t width = pooled ? encoder.pooled_width() : encoder.width();
  KINORA_CHECK(width > 0, kConfig, "[text] ", models::name_of(model),
               " takes a pooled vector, and text.encoder, ", path, ", gives none. Hint: a CLIP");
  KINORA_CHECK(width == model.text_channels, kConfig, "[text] text.encoder, ", path,
               ", gives vectors of ", width, " numbers, but model.text_channels is ",
               model.text_channels, ". Hint: take the encoder that the model was made for");
  KINORA_CHECK(model.pooled_channels == 0 || encoder.pooled_width() == model.pooled_channels,
               kConfig, "[text] text.encoder, ", path, ", gives pooled vectors of ",
               encoder.pooled_width(), " numbers, but model.pooled_channels is ",
               model.pooled_channels, ". Hint: take the encoder that the model was made for");
  pipelines::check_vocabulary(*tokens.tokenizer, "text.encoder, " + path + ",",
                              encoder.vocab_size());
}

std::optional<models::EightBit> eight_bits_of(TextWeights weights) {
  switch (weights) {
    case TextWeights::kFull:
      return std::nullopt;
    case TextWeights::kInt8:
      return models::EightBit::kInt8;
    case TextWeights::kFp8:
      return models::EightBit::kFp8;
  }
  KINORA_UNREACHABLE("[text] unknown weights");
}

std::unique_ptr<FrozenTextEncoder> open_text_encoder(const ModelRecipe& recipe,
                                                     const data::CaptionTokens& tokens,
                                                     at::Device device, const comm::Group& ranks) {
  const TextOptions& text = recipe.text;
  if (text.encoder.empty()) {
    return nullptr;
  }
  check_text_encoder(recipe, tokens);
  auto model =
      pipelines::open_text_encoder(text.encoder, {.device = device,
                                                  .type = compute_type(text.precision),
                                                  .eight_bits = eight_bits_of(text.weights),
                                                  .ranks = ranks});
  fill_texts(*model, recipe, tokens);
  const pipelines::TextBatchEncoder encoder = batches_of(*model, text);
  return std::make_unique<FrozenTextEncoder>(FrozenTextEncoder{std::move(model), encoder});
}

Prompts prompts_of_encoder(const std::vector<std::string>& captions, const ModelRecipe& recipe,
                           at::Device device) {
  const data::CaptionTokens tokens = caption_tokens(recipe).value();
  Prompts prompts = prompts_of_tokens(captions, tokens);
  check_text_encoder(recipe, tokens);
  const auto encoder = open_fitting_text_encoder(
      recipe.text.encoder, {.device = device,
                            .type = compute_type(recipe.text.precision),
                            .eight_bits = eight_bits_of(recipe.text.weights)});
  fill_texts(*encoder, recipe, tokens);
  encode(prompts, batches_of(*encoder, recipe.text));
  prompts.origin = recipe.text.encoder + (tokens.cleans ? ", cleaned" : "");
  return prompts;
}

void encode(Prompts& prompts, const pipelines::TextBatchEncoder& encoder) {
  const int64_t count = std::ssize(prompts.all);
  const int64_t length = prompts.shape.length;
  const at::Tensor tokens = at::empty({count, length}, at::kLong);
  const at::Tensor lengths = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const data::Text& text = prompts.all[static_cast<size_t>(i)].text;
    std::ranges::copy(text.ids, tokens.mutable_data_ptr<int64_t>() + i * length);
    lengths.mutable_data_ptr<int64_t>()[i] = text.length;
  }
  const pipelines::EncodedTexts encoded = encoder.encode(tokens, lengths);
  const auto row_of = [](const at::Tensor& rows, int64_t i) {
    const at::Tensor row = rows[i].cpu().contiguous();
    const auto* values = row.const_data_ptr<float>();
    return std::vector<float>(values, values + row.numel());
  };
  for (int64_t i = 0; i < count; ++i) {
    data::Text& text = prompts.all[static_cast<size_t>(i)].text;
    text.tokens = row_of(encoded.states, i);
    text.length = encoder.num_states(text.length);
    text.pooled = encoded.pooled.defined() ? row_of(encoded.pooled, i) : std::vector<float>();
    text.ids.clear();
  }
  prompts.shape = encoder.shape_of(length);
}

}  // namespace kinora::inference
