#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/text_batch_encoder.h"

namespace kinora::inference {

/// The text encoder of a recipe, frozen.
struct FrozenTextEncoder {
  std::unique_ptr<models::TextEncoder> model;
  pipelines::TextBatchEncoder encoder;
};

/// Nothing: as they are.
[[nodiscard]] std::optional<models::EightBit> eight_bits_of(TextWeights weights);

/// Before any weight is read: kConfig where the vectors of text.encoder are not those that the
/// model takes, or its vocabulary is smaller than the tokenizer's. recipe.model is resolved.
void check_text_encoder(const ModelRecipe& recipe, const data::CaptionTokens& tokens);

/// That of text.encoder; null without a path. recipe.model is resolved. Errors of opening it
/// and of check_text_encoder(). ranks: those that share its blocks
/// (pipelines::TextEncoderOptions).
[[nodiscard]] std::unique_ptr<FrozenTextEncoder> open_text_encoder(
    const ModelRecipe& recipe, const data::CaptionTokens& tokens, at::Device device,
    const comm::Group& ranks = {});

/// The captions as text.tokenizer and text.encoder of the recipe embed them, which are released
/// before this returns. Errors as those of open_text_encoder() and caption_tokens(); kConfig for a
/// caption without a token, or none.
[[nodiscard]] Prompts prompts_of_encoder(const std::vector<std::string>& captions,
                                         const ModelRecipe& recipe, at::Device device);

/// Makes vectors of the tokens of prompts_of_data().
void encode(Prompts& prompts, const pipelines::TextBatchEncoder& encoder);

}  // namespace kinora::inference
