#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/wrapped_source.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::data {

/// The tokenizer of a text encoder beside the first (TextEncoder::beside).
struct TokenizerBeside {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  int64_t length = 0;  ///< places of each text, padded
};

/// How captions become tokens.
struct CaptionTokens {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  /// Their tokens stand behind the others, which are padded (`pads`) to what max_length leaves.
  std::vector<TokenizerBeside> beside = {};
  /// What stands around each caption (models::CaptionFrame); those beside do without.
  std::string before = {};
  std::string behind = {};
  /// L: places that every text has, special tokens counted. Longer texts are cut off.
  int64_t max_length = 0;
  /// A longer text stands in pieces of so many tokens (tokenizers/pieces.h); nothing: in one.
  std::optional<int64_t> piece = {};
  /// Padding fills them up and counts as the rest (PieceOptions::pads).
  bool pads = false;
  bool cleans = false;  ///< prompts::preprocess_caption() before they are tokenised
  /// Captions are layouts (layout.h): each object is the tokens of its phrase and, numbered behind
  /// the tokenizer's own, the places of its two corners on such a grid (Rombach et al. 2022,
  /// appendix). 0: captions are words.
  int64_t layout_grid = 0;
};

/// max_length without the tokens of `beside`.
[[nodiscard]] int64_t own_length(const CaptionTokens& tokens);

/// Behind the ids of a text, those of the tokenizers beside.
void add_tokens_beside(const std::vector<TokenizerBeside>& beside, std::string_view text,
                       std::vector<int64_t>& ids);

/// Those of one caption. Errors of the tokenizer and the cleaning; of layouts of parse_layout(),
/// and kConfig for one that does not fit into max_length, which is never cut off.
[[nodiscard]] tokenizers::Tokens encode(const CaptionTokens& tokens, std::string_view caption);

/// A caption between double quotes, as messages show it: of a long one its beginning.
[[nodiscard]] std::string shortened(const std::string& caption);

/// Gives the samples of another source the tokens of their caption or, without one, of their class
/// name: Text::ids, padded by the tokenizer's padding (0 where it has none) behind the text's
/// length. The first text that is cut off is named in the log. A sample whose text has no token, or
/// that the tokenizer or the cleaning refuses, is unreadable.
class TokenSource : public WrappedSource {
 public:
  /// kConfig: max_length has no room for a token beside the special ones.
  TokenSource(std::unique_ptr<Source> inner, CaptionTokens tokens);

  [[nodiscard]] std::optional<TextShape> text_shape() const override {
    return TextShape{.length = tokens_.max_length, .channels = 0, .pooled_channels = 0};
  }
  void read(int64_t index, Sample& out) const override;

 private:
  [[nodiscard]] std::vector<int64_t> ids_of(int64_t index, std::string_view caption) const;

  CaptionTokens tokens_;
  int64_t padding_;
  mutable std::atomic<bool> said_what_is_cut_ = false;
};

}  // namespace kinora::data
