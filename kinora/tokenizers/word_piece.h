#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/tokenizers/byte_trie.h"
#include "kinora/tokenizers/vocabulary.h"

namespace kinora::tokenizers {

/// BERT's division of a word (Devlin et al. 2018; WordPiece of Hugging Face's tokenizers): from
/// left to right the longest token each time, which behind the first begins with a prefix in the
/// vocabulary. "circles": circle, ##s.
class WordPiece {
 public:
  /// Fields are named as in tokenizer.json.
  struct Rules {
    int64_t unk = -1;  ///< for a whole word of which a part has no token, or that is too long
    std::string continuing_subword_prefix = "##";
    int64_t max_input_chars_per_word = 100;
  };
  /// What a word is written to on its way: nothing.
  struct Scratch {};

  /// Error (kIo), which begins with `where`: there is no unk, or a token is too long.
  WordPiece(const Vocabulary& vocabulary, Rules rules, std::string_view where);

  /// Appends the ids of `word`, which is well-formed UTF-8.
  void encode(std::string_view word, std::vector<int64_t>& ids, Scratch& scratch) const;

 private:
  Rules rules_;
  ByteTrie first_;  // all tokens
  ByteTrie rest_;   // those with the prefix, without it
};

}  // namespace kinora::tokenizers
