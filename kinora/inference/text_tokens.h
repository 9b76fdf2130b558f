#pragma once

#include <optional>

#include "kinora/data/caption_tokens.h"
#include "kinora/inference/recipe.h"

namespace kinora::inference {

/// How the captions of the recipe's data become tokens, by the keys text.*: cut off after
/// text.max_length (of a CLIP in pieces, where that is more than its positions), else after
/// model.text_tokens or what the tokenizer says, whichever is less. Nothing without a tokenizer and
/// an encoder. Errors of Tokenizer::load(); kConfig where data.text is tokens and there is none, or
/// it has more tokens than the model's own text encoder.
[[nodiscard]] std::optional<data::CaptionTokens> caption_tokens(const ModelRecipe& recipe);

}  // namespace kinora::inference
