#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kinora::tokenizers {

/// The largest file of a tokenizer; the largest published ones have 35 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

/// The files that a tokenizer is read from, in memory: those of a folder, or those that another
/// file keeps as texts, so that it brings its tokenizer along.
class TokenizerFiles {
 public:
  struct File {
    std::string shown;  ///< its name in errors
    std::string bytes;
  };

  /// Those that Tokenizer::load(path) reads. kIo: there are none, or one cannot be read.
  [[nodiscard]] static TokenizerFiles read(const std::filesystem::path& path);

  /// Each file's content by its name, as base64.
  [[nodiscard]] std::map<std::string, std::string> texts() const;
  /// The inverse. text_of: by the name; empty: there is none. Only names that tokenizers have are
  /// asked for. Nothing where no text is there. kIo, naming `origin`, where one is not base64.
  [[nodiscard]] static std::optional<TokenizerFiles> from_texts(
      const std::function<std::string(const std::string& name)>& text_of,
      const std::string& origin);

  /// The name of the one that says what the tokenizer is: tokenizer.json, spiece.model (of every
  /// model of SentencePiece), vocab.json or vocab.txt.
  [[nodiscard]] const std::string& main() const { return main_; }
  [[nodiscard]] const File& at(const std::string& name) const;    ///< kIo where it is missing
  [[nodiscard]] const File* find(const std::string& name) const;  ///< null likewise
  [[nodiscard]] int64_t num_bytes() const;                        ///< of all of them

  /// A token besides those of the files, which is looked for in texts as it is written. texts()
  /// does not have it.
  void add_token(const std::string& content, int64_t id) { added_.emplace_back(content, id); }
  [[nodiscard]] const std::vector<std::pair<std::string, int64_t>>& added() const { return added_; }

 private:
  TokenizerFiles(std::string main, std::string shown)
      : main_(std::move(main)), shown_(std::move(shown)) {}

  std::string main_;
  std::string shown_;
  std::map<std::string, File> files_;
  std::vector<std::pair<std::string, int64_t>> added_;
};

}  // namespace kinora::tokenizers
