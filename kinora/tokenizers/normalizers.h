#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kinora/tokenizers/byte_trie.h"
#include "kinora/tokenizers/char_map.h"
#include "kinora/tokenizers/pattern.h"

/// The first stage: text to text. Names and rules are those of Hugging Face's tokenizers.
namespace kinora::tokenizers {

/// A piece of a text on its way.
struct NormalizedText {
  std::string text;
  /// Whether its first character comes from the first one of the user's text.
  bool at_start = true;
};

/// NFC, NFD, NFKC, NFKD (Unicode standard annex 15).
struct UnicodeForm {
  bool composed = true;
  bool compatible = false;
};

/// Each character's lower case, whatever is around it.
struct Lowercase {};

struct Replace {
  Pattern pattern;
  std::string content;
};

/// In front of every text that is not empty.
struct Prepend {
  std::string text;
};

/// White space at the ends goes.
struct Strip {
  bool left = true;
  bool right = true;
};

/// A SentencePiece table of replacements as Hugging Face applies it: to grapheme clusters of up to
/// five bytes as wholes, else to characters.
struct Precompiled {
  CharMap map;
};

/// BertNormalizer: control characters, formats and what is of private use go, and white space is a
/// space (clean_text); ideographs stand alone; marks are taken off letters; lower case.
struct BertRules {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

/// What SentencePiece does with a text before it divides it (normalizer.cc there).
struct SentencePieceRules {
  std::optional<CharMap> map;
  ByteTrie kept;  ///< symbols of the user, which are not replaced
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;  ///< the dummy goes behind the text
};

using Normalizer = std::variant<UnicodeForm, Lowercase, Replace, Prepend, Strip, Precompiled,
                                BertRules, SentencePieceRules>;

/// The longest text that stages may make, in bytes.
inline constexpr size_t kMaxNormalizedBytes = size_t{256} << 20;

/// Applies the stages in order. `text` is well-formed UTF-8, before and after. Error (kConfig): a
/// stage makes more than kMaxNormalizedBytes of it.
void normalize(const std::vector<Normalizer>& stages, NormalizedText& text);

}  // namespace kinora::tokenizers
