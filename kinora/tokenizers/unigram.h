#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kinora/tokenizers/byte_trie.h"
#include "kinora/tokenizers/vocabulary.h"

namespace kinora::tokenizers {

/// The most likely division into pieces of known log-likelihood (Kudo 2018), by Viterbi's algorithm
/// over a trie: time in proportion to the text.
class Unigram {
 public:
  struct Rules {
    int64_t unk = -1;            ///< for runs of characters without a piece; -1: they are an error
    bool byte_fallback = false;  ///< tokens of bytes come before unk, where all 256 are there
    /// Sums in float32, as SentencePiece adds; else in float64, as Hugging Face does. Only ties of
    /// divisions differ.
    bool single_precision = false;
  };
  struct Node {
    double score;
    int32_t id;
    uint32_t begin;
  };
  /// What a text is written to on its way.
  using Scratch = std::vector<Node>;

  struct ScoredPiece {
    std::string_view text;
    int64_t id = 0;
    double score = 0;
  };
  /// The longest piece, in bytes, so that no file makes encoding slow.
  static constexpr size_t kMaxPieceBytes = 1024;

  /// Error (kIo), which begins with `where`: a piece is too long.
  Unigram(const Vocabulary& vocabulary, const Rules& rules, const std::vector<ScoredPiece>& pieces,
          std::string_view where);

  /// Appends the ids of `text`, which is well-formed UTF-8 of less than 4 GiB. Error
  /// (kConfig): a character has no piece, and there is no unk.
  void encode(std::string_view text, std::vector<int64_t>& ids, Scratch& scratch) const;

 private:
  template <typename Sum>
  void fill(std::string_view text, Scratch& nodes) const;
  void emit_unknown(std::string_view text, std::vector<int64_t>& ids) const;

  Rules rules_;
  ByteTrie trie_;
  std::vector<double> scores_;  // by id
  double unk_score_ = 0;
  std::vector<int64_t> byte_ids_;
  const Vocabulary* vocabulary_;
};

}  // namespace kinora::tokenizers
