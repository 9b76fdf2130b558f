#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kinora/tokenizers/pattern.h"

/// The second stage: a text is divided into pieces, which the model takes one by one. Names and
/// rules are those of Hugging Face's tokenizers.
namespace kinora::tokenizers {

/// A part of a divided text.
struct Piece {
  TextRange range;
  int64_t token = -1;     ///< an added token that was found there; -1: text for the model
  bool at_start = false;  ///< it begins where the user's text begins
};

struct DividedText {
  std::string text;
  std::vector<Piece> pieces;
};

/// What becomes of what a Split finds in "a-b": removed: a, b; isolated: a, -, b; with the
/// previous: a-, b; with the next: a, -b; contiguous: as isolated, but neighbours stay together.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< what is between the matches is meant
};

/// A Split at each character of a kind.
struct CharacterSplit {
  bool (*is_match)(char32_t) = nullptr;
  SplitBehavior behavior = SplitBehavior::kIsolated;
};

/// The pre-tokenizer Whitespace: words, and what is neither word nor white space.
struct WordSplit {};

/// Bytes as the 256 printable characters of GPT-2, with or without its division into words.
struct ByteLevel {
  bool add_prefix_space = true;
  bool use_regex = true;
};

/// Spaces as another character, one in front of pieces, and a division in front of each.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement = "\xE2\x96\x81";
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

using PreTokenizer = std::variant<Split, CharacterSplit, WordSplit, ByteLevel, Metaspace>;

/// Applies the stages in order to the pieces that are text.
void pre_tokenize(const std::vector<PreTokenizer>& stages, DividedText& text);

/// The bytes that `text` stands for in the characters of ByteLevel; false: it has others.
[[nodiscard]] bool from_byte_level(std::string_view text, std::string& bytes);

/// The other way.
void append_byte_level(std::string_view bytes, std::string& text);

}  // namespace kinora::tokenizers
