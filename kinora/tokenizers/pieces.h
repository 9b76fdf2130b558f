#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kinora/tokenizers/tokenizer.h"

namespace kinora::tokenizers {

/// How long a text may be, and in what it stands.
struct PieceOptions {
  std::optional<int64_t> max_length = std::nullopt;  ///< EncodeOptions::max_length
  /// What an encoder takes at once: 77 of CLIP. Nothing: a text stands in one.
  std::optional<int64_t> piece = std::nullopt;
  /// Padding fills a text, or the last of its pieces, up: to `piece` tokens, without pieces to
  /// max_length. Never beyond max_length.
  bool pads = false;
};

/// The ids of a text. A longer one than `piece` stands in pieces one behind the other, each but the
/// last of `piece` tokens with the special tokens of its own around it, as AUTOMATIC1111 and Compel
/// (truncate_long_prompts=False) encode long prompts: 100 tokens for a CLIP are 77 and 27. The
/// special tokens count towards max_length. Errors of Tokenizer::encode(); kConfig where padding is
/// asked for and the tokenizer has none.
[[nodiscard]] Tokens encode_in_pieces(const Tokenizer& tokenizer, std::string_view text,
                                      const PieceOptions& options);

}  // namespace kinora::tokenizers
