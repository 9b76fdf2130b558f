#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::tokenizers {

/// The table of replacements in a SentencePiece model (`precompiled_charsmap`): a Darts double
/// array of the texts to replace, and the replacements. Also in tokenizer.json, as base64.
class CharMap {
 public:
  struct Replacement {
    size_t size;            ///< bytes of text that are replaced
    std::string_view text;  ///< instead of them
  };

  /// Error (kIo), which begins with `where`: the bytes are no such table.
  CharMap(std::string_view bytes, std::string_view where);

  /// For the longest entry with which `text` begins, as SentencePiece looks.
  [[nodiscard]] std::optional<Replacement> longest(std::string_view text) const;

  /// For the shortest one, as Hugging Face's tokenizers look.
  [[nodiscard]] std::optional<Replacement> shortest(std::string_view text) const;

 private:
  template <typename Use>
  void each_prefix(std::string_view text, const Use& use) const;
  [[nodiscard]] std::string_view replacement_at(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace kinora::tokenizers
