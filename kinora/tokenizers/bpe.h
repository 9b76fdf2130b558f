#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/tokenizers/flat_map.h"
#include "kinora/tokenizers/vocabulary.h"

namespace kinora::tokenizers {

/// Byte pair encoding (Sennrich et al. 2016): a word begins as its characters; of all pairs of
/// neighbours that may merge, that of the lowest rank does, the leftmost of equal ones, until none
/// may. Takes O(n log n) time for n characters.
class Bpe {
 public:
  struct Merge {
    int64_t left = 0;
    int64_t right = 0;
    int64_t result = 0;
    int64_t rank = 0;  ///< its place in the list
  };
  /// Fields are named as in tokenizer.json.
  struct Rules {
    int64_t unk = -1;  ///< for characters that have no token; -1: they are left out
    std::string continuing_subword_prefix;
    std::string end_of_word_suffix;
    bool fuse_unk = false;
    bool byte_fallback = false;  ///< tokens of bytes come before unk
    bool ignore_merges = false;  ///< a word that is a token stays whole
  };
  /// What a word is written to on its way.
  struct Scratch {
    std::vector<int32_t> ids;
    std::vector<uint32_t> begins;  // SentencePiece: where a symbol begins
    std::vector<uint64_t> merges;  // what each may become with the next: rank << 32 | id
    std::vector<int32_t> neighbours;
    std::vector<uint64_t> heap;
    std::string text;
  };

  Bpe(const Vocabulary& vocabulary, Rules rules, const std::vector<Merge>& merges);

  /// By the pieces of a SentencePiece model: any two neighbours merge whose text is a piece, the
  /// better score first; a character without a piece may, too. What is left without one becomes
  /// bytes or one `unk` a run. `pieces` are those that may be made of others, with their scores.
  struct ScoredPiece {
    std::string text;
    int64_t id = 0;
    float score = 0;
  };
  static Bpe of_sentence_piece(const Vocabulary& vocabulary, Rules rules,
                               const std::vector<ScoredPiece>& pieces);

  /// Appends the ids of `word`, which is well-formed UTF-8 of less than 4 GiB.
  void encode(std::string_view word, std::vector<int64_t>& ids, Scratch& scratch) const;

 private:
  Bpe() = default;

  void add_symbols(std::string_view word, Scratch& scratch) const;
  void add_sentence_piece_symbols(std::string_view word, Scratch& scratch) const;
  [[nodiscard]] uint64_t merge_of(int32_t left, int32_t right) const;
  void merge_few(Scratch& scratch) const;
  void merge_many(Scratch& scratch) const;
  void emit_sentence_piece(std::string_view word, std::vector<int64_t>& ids,
                           const Scratch& scratch) const;

  Rules rules_;
  bool is_sentence_piece_ = false;
  int64_t num_tokens_ = 0;         // symbols from here on are characters without a token
  FlatMap characters_;             // code point, is first, is last -> id
  FlatMap merges_;                 // left, right -> rank << 32 | id
  std::vector<int64_t> byte_ids_;  // empty: no byte_fallback
  const Vocabulary* vocabulary_ = nullptr;
};

}  // namespace kinora::tokenizers
