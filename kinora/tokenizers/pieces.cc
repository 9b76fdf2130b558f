#include "kinora/tokenizers/pieces.h"

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::tokenizers {
namespace {

Tokens without_padding(const Tokenizer& tokenizer, std::string_view text,
                       const PieceOptions& options) {
  const std::vector<int64_t> special = tokenizer.encode("").ids;
  const int64_t piece = options.piece.value_or(0);
  const int64_t inner = piece - std::ssize(special);  // tokens of the text in a piece
  if (special.empty() || inner < 1 || (options.max_length && *options.max_length <= piece)) {
    return tokenizer.encode(text, {.max_length = options.max_length});
  }
  Tokens whole = tokenizer.encode(text);
  const int64_t count = std::ssize(whole.ids) - std::ssize(special);
  if (std::ssize(whole.ids) <= piece) {
    return whole;
  }
  const int64_t front = special.front() == tokenizer.bos_id() ? 1 : 0;
  const auto first = whole.ids.begin() + front;
  int64_t kept = count;
  if (options.max_length) {
    const int64_t rest = *options.max_length % piece - std::ssize(special);
    kept = std::min(count, *options.max_length / piece * inner + std::max<int64_t>(rest, 0));
  }
  Tokens result;
  for (int64_t begin = 0; begin < kept; begin += inner) {
    const int64_t end = std::min(begin + inner, kept);
    result.ids.insert(result.ids.end(), special.begin(), special.begin() + front);
    result.ids.insert(result.ids.end(), first + begin, first + end);
    result.ids.insert(result.ids.end(), special.begin() + front, special.end());
  }
  result.num_cut = count - kept;
  if (result.num_cut > 0) {
    result.cut = tokenizer.decode({first + kept, first + count});
  }
  return result;
}

}  // namespace

Tokens encode_in_pieces(const Tokenizer& tokenizer, std::string_view text,
                        const PieceOptions& options) {
  Tokens tokens = without_padding(tokenizer, text, options);
  if (options.pads) {
    const std::optional<int64_t> padding = tokenizer.pad_id();
    KINORA_CHECK(padding.has_value(), kConfig,
                 "[tokenizer] the tokenizer must have a padding token, with which this model's "
                 "captions are filled up, got none. Hint: pad_token in tokenizer_config.json");
    const int64_t count = std::ssize(tokens.ids);
    const int64_t piece =
        std::max<int64_t>(options.piece.value_or(options.max_length.value_or(count)), 1);
    const int64_t whole = round_up(count, piece);
    tokens.ids.resize(static_cast<size_t>(std::min(whole, options.max_length.value_or(whole))),
                      *padding);
  }
  return tokens;
}

}  // namespace kinora::tokenizers
