#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Text as the numbers that text encoders take, the same as Hugging Face's fast tokenizers give.
namespace kinora::tokenizers {

struct Pipeline;
class TokenizerFiles;

struct EncodeOptions {
  bool special_tokens = true;  ///< those that the model expects around a text
  /// At most so many tokens, special ones counted: the rest of the text is cut off.
  std::optional<int64_t> max_length = std::nullopt;
};

struct Tokens {
  std::vector<int64_t> ids;
  /// What max_length cut off, as the tokenizer would write it; empty: nothing. Show it to who wrote
  /// the text.
  std::string cut;
  int64_t num_cut = 0;  ///< tokens of it
};

/// A tokenizer of a text encoder. Example:
///
///     const auto tokenizer = Tokenizer::load("clip/tokenizer");
///     const Tokens tokens = tokenizer.encode("a red circle", {.max_length = 77});
///     // 49406 320 736 7117 49407
///
/// Its functions may be called from several threads at once.
class Tokenizer {
 public:
  /// From a folder as Hugging Face lays it out, with one of these, the first that is there:
  /// tokenizer.json; spiece.model or tokenizer.model (SentencePiece, unigram or BPE); vocab.json
  /// with merges.txt (CLIP's); vocab.txt (BERT's). tokenizer_config.json and
  /// special_tokens_map.json beside them are read, too. Or from one of these files. Errors: kIo, a
  /// file is missing, malformed, or needs what is not supported, which is named.
  [[nodiscard]] static Tokenizer load(const std::filesystem::path& path);
  /// The same from its files in memory (tokenizer_files.h).
  explicit Tokenizer(const TokenizerFiles& files);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of `text`. Bytes of it that are not UTF-8 count as U+FFFD, as in Python's
  /// decode(errors="replace"). Takes time in proportion to the text, of up to 64 MiB. Errors
  /// (kConfig): max_length leaves no room for the special tokens; the text has a character without
  /// a token, and there is none for unknown ones.
  [[nodiscard]] Tokens encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The text of these ids, without special tokens unless they are asked for. Ids without a token
  /// are left out.
  [[nodiscard]] std::string decode(const std::vector<int64_t>& ids,
                                   bool special_tokens = false) const;

  /// The largest id + 1: so many rows the embeddings must have at least.
  [[nodiscard]] int64_t vocab_size() const;

  /// Nothing if there is no such token.
  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const;
  [[nodiscard]] std::optional<std::string> token_of(int64_t id) const;

  /// Tokens with a meaning, where the files name them.
  [[nodiscard]] std::optional<int64_t> bos_id() const;
  [[nodiscard]] std::optional<int64_t> eos_id() const;
  [[nodiscard]] std::optional<int64_t> pad_id() const;
  [[nodiscard]] std::optional<int64_t> unk_id() const;

  /// Tokens that the model takes (model_max_length of tokenizer_config.json).
  [[nodiscard]] std::optional<int64_t> max_length() const;

  /// Special tokens that encode() puts around a text.
  [[nodiscard]] int64_t num_special_tokens() const;

 private:
  explicit Tokenizer(Pipeline pipeline);

  std::unique_ptr<const Pipeline> pipeline_;
};

}  // namespace kinora::tokenizers
