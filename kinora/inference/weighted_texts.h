#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/inference/request.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/prompts/prompt_weights.h"
#include "kinora/tokenizers/tokenizer.h"

/// Prompts whose pieces count more or less than others: "a (red:1.3) circle".
namespace kinora::inference {

[[nodiscard]] prompts::WeightSyntax syntax_of(PromptWeights weights);

/// A text in tokens, of which some count more or less.
struct WeightedTokens {
  /// Tokens begin, ..., end - 1.
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    double weight = 1.0;
  };
  std::vector<int64_t> ids;  ///< the special ones included
  /// So many of the first are attended to; those behind are padding, which has states too. 0: all.
  int64_t attended = 0;
  std::vector<Piece> pieces;  ///< without the special tokens
  std::string cut;            ///< tokenizers::Tokens::cut
  int64_t num_cut = 0;

  [[nodiscard]] bool is_weighted() const;
};

/// Numbers of a text. A text of one piece is encoded as it is. Of others each piece is encoded by
/// itself, as A1111 and Compel do, and the special tokens stand around them all. At most max_length
/// tokens remain. kConfig as Tokenizer::encode().
[[nodiscard]] WeightedTokens weighted_tokens(const tokenizers::Tokenizer& tokenizer,
                                             const std::vector<prompts::WeightedText>& pieces,
                                             int64_t max_length);

/// What weighting wants to know beside the text.
struct WeightedStatesOptions {
  PromptWeights weights = PromptWeights::kOff;
  std::vector<int64_t> empty;  ///< the empty text: special tokens alone
  int64_t pad_id = 0;
  int64_t max_length = 0;  ///< up to which Compel pads
};

/// The weighted states of a text, fp32 [tokens, C] on the CPU. With W the weight of a token's
/// piece, 1 of special tokens:
///
///   A1111 ("Original" emphasis): z W mean(z) / mean(z W), the means over all tokens and channels.
///     Where that factor is below 1/2 or above 2, as where the mean is about 0, it is left out
///     ("No norm").
///   Compel 2.5 (DownweightMode.REMOVE, padding not attended to): e + W (z - e), with e the states
///     of the empty text, padded to max_length. Then for each piece of W < 1 the same of the text
///     without it, padded so, takes part with tan((1 - W) pi / 2) beside 1, over their sum.
[[nodiscard]] at::Tensor weighted_states(models::TextEncoder& encoder, const WeightedTokens& text,
                                         const WeightedStatesOptions& options);

}  // namespace kinora::inference
