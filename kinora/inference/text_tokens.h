#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kinora/data/caption_tokens.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/model_config.h"

namespace kinora::inference {

/// A token of text.new_tokens.
struct NewToken {
  std::string token;
  std::string words;  ///< that it starts as
};

/// Of text.new_tokens. kConfig for what is not TOKEN=WORDS, and for a token that stands twice.
[[nodiscard]] std::vector<NewToken> new_tokens_of(const TextOptions& text);

/// How the captions of the recipe's data become tokens, by the keys text.*: cut off after
/// text.max_length (of a CLIP in pieces, where that is more than its positions), else after
/// model.text_tokens or what the tokenizer says, whichever is less. Nothing without a tokenizer and
/// an encoder. Errors of Tokenizer::load(); kConfig where data.text is tokens and there is none, or
/// it has more tokens than the model's own text encoder.
[[nodiscard]] std::optional<data::CaptionTokens> caption_tokens(const ModelRecipe& recipe);

/// Whether captions are cleaned before they are tokenised where nobody says (text.clean): not where
/// the model reads one vector a caption, nor where they are padded as CLIP's or kept as they are
/// written. It may be unresolved.
[[nodiscard]] bool cleans_captions(const models::ModelConfig& model);

}  // namespace kinora::inference
