#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kinora/tokenizers/added_tokens.h"
#include "kinora/tokenizers/bpe.h"
#include "kinora/tokenizers/decoders.h"
#include "kinora/tokenizers/normalizers.h"
#include "kinora/tokenizers/pre_tokenizers.h"
#include "kinora/tokenizers/tokenizer_files.h"
#include "kinora/tokenizers/unigram.h"
#include "kinora/tokenizers/vocabulary.h"
#include "kinora/tokenizers/word_piece.h"

/// What a tokenizer is made of, whatever files describe it. Each reader below makes one; Tokenizer
/// (tokenizer.h) runs it.
namespace kinora::tokenizers {

/// Ids of tokens with a meaning; -1: there is none.
struct SpecialTokens {
  int64_t bos = -1;
  int64_t eos = -1;
  int64_t pad = -1;
  int64_t unk = -1;
};

struct Pipeline {
  std::string where;  ///< begins errors: "[tokenizer] FILE:"
  std::unique_ptr<Vocabulary> vocabulary = std::make_unique<Vocabulary>();
  AddedTokens added;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::optional<std::variant<Bpe, Unigram, WordPiece>> model;  ///< set by every reader
  std::vector<int64_t> before;                   ///< special tokens in front of a text's
  std::vector<int64_t> after;                    ///< and behind them
  std::optional<std::vector<Decoder>> decoders;  ///< none: tokens are joined with spaces
  SpecialTokens special;
  int64_t max_length = 0;  ///< tokens with the special ones that the model takes; 0: not said
  bool cut_left = false;   ///< truncation takes the first tokens away

  /// -1 if there is none.
  [[nodiscard]] int64_t id_of(std::string_view token) const {
    const int64_t id = added.id_of(token);
    return id >= 0 ? id : vocabulary->id_of(token);
  }

  /// Adds a token to look for; one of the vocabulary keeps its id there.
  void add_token(AddedToken token);
};

/// A tokenizer.json of Hugging Face's tokenizers. Errors (kIo): it is malformed, or names a stage
/// that is not supported.
[[nodiscard]] Pipeline read_tokenizer_json(const TokenizerFiles& files);

class JsonValue;

/// The parts of a tokenizer.json; `added_tokens` come last, since they are normalised, too.
void read_normalizer(const JsonValue& value, std::vector<Normalizer>& stages);
void read_pre_tokenizer(const JsonValue& value, std::vector<PreTokenizer>& stages);
void read_decoder(const JsonValue& value, std::vector<Decoder>& stages);
void read_model(const JsonValue& value, Pipeline& pipeline);

/// Behind DecodeByteLevel, which joins: the ends of words as spaces, as CLIPTokenizer writes them.
void add_suffix_decoders(const std::string& suffix, std::vector<Decoder>& stages);

/// What BertPreTokenizer does: words, and each mark by itself.
void add_bert_pre_tokenizers(std::vector<PreTokenizer>& stages);

/// A list of merges, each a pair of tokens, in order: the earlier merges first.
class MergeList {
 public:
  MergeList(const Vocabulary& vocabulary, size_t prefix_bytes)
      : vocabulary_(vocabulary), prefix_bytes_(prefix_bytes) {}

  /// Error (kIo), which begins with `where`: one of the three tokens is not in the vocabulary.
  void add(std::string_view left, std::string_view right, std::string_view where);
  /// The same from "left right".
  void add(std::string_view line, std::string_view where);

  [[nodiscard]] const std::vector<Bpe::Merge>& merges() const { return merges_; }

 private:
  const Vocabulary& vocabulary_;
  size_t prefix_bytes_;  // of continuing_subword_prefix
  std::vector<Bpe::Merge> merges_;
};

/// Tokens in front of and behind a text that a SentencePiece model does not say itself.
struct SentencePieceSpecials {
  std::optional<bool> add_bos;  ///< default: models of BPE (LLaMA)
  std::optional<bool> add_eos;  ///< default: models of unigrams (T5)
  /// Sentinels "<extra_id_N>" behind the vocabulary, as T5 has; default: 100 for unigrams that name
  /// none themselves.
  std::optional<int64_t> num_extra_ids;
};

/// A model that SentencePiece has trained (spiece.model, tokenizer.model).
[[nodiscard]] Pipeline read_sentence_piece(const TokenizerFiles& files,
                                           const SentencePieceSpecials& specials);

/// tokenizer_config.json and special_tokens_map.json beside the other files, which may be missing.
struct TokenizerConfig {
  /// A token as these files write it: its text alone, or with how it is looked for.
  struct Token {
    std::string role;  ///< "bos_token", ...
    AddedToken token;  ///< without an id
  };
  std::string tokenizer_class;
  std::vector<Token> tokens;      ///< bos, eos, unk, pad, cls, sep, mask
  std::vector<AddedToken> added;  ///< with ids (added_tokens_decoder)
  int64_t max_length = 0;         ///< 0: not said
  bool cut_left = false;
  SentencePieceSpecials sentence_piece;
  BertRules bert;  ///< do_lower_case and what stands beside it
};
[[nodiscard]] TokenizerConfig read_tokenizer_config(const TokenizerFiles& files);

/// The vocab.json and merges.txt of CLIP. Error (kIo): they are of another tokenizer.
[[nodiscard]] Pipeline read_clip_files(const TokenizerFiles& files, const TokenizerConfig& config);

/// The vocab.txt of BERT, a token a line. Error (kIo): it is of another tokenizer.
[[nodiscard]] Pipeline read_bert_files(const TokenizerFiles& files, const TokenizerConfig& config);

}  // namespace kinora::tokenizers
