#pragma once

#include <string>
#include <variant>
#include <vector>

#include "kinora/tokenizers/pattern.h"

/// From tokens back to text. Names and rules are those of Hugging Face's tokenizers.
namespace kinora::tokenizers {

/// Characters of ByteLevel as the bytes that they stand for; joins all tokens.
struct DecodeByteLevel {};

/// The replacement as a space; at the beginning of the first token as nothing, if `is_prepended`.
struct DecodeMetaspace {
  std::string replacement;
  bool is_prepended = true;
};

struct DecodeReplace {
  Pattern pattern;
  std::string content;
};

/// Tokens "<0xE2>" as bytes; a run of them that is no UTF-8 as a U+FFFD each.
struct DecodeByteFallback {};

/// Joins all tokens.
struct DecodeFuse {};

/// Up to `start` and `stop` times `content` from the ends of each token.
struct DecodeStrip {
  std::string content;  ///< one character
  int64_t start = 0;
  int64_t stop = 0;
};

/// The suffix of words as a space, but for the last token's.
struct DecodeSuffix {
  std::string suffix;
};

/// The prefix of tokens within a word as nothing, and a space in front of others; cleanup: none in
/// front of marks and of English endings ("n't").
struct DecodeWordPiece {
  std::string prefix = "##";
  bool cleanup = true;
};

using Decoder = std::variant<DecodeByteLevel, DecodeMetaspace, DecodeReplace, DecodeByteFallback,
                             DecodeFuse, DecodeStrip, DecodeSuffix, DecodeWordPiece>;

/// Applies the stages in order and joins what is left.
[[nodiscard]] std::string decode_tokens(const std::vector<Decoder>& stages,
                                        std::vector<std::string> tokens);

}  // namespace kinora::tokenizers
