#include "kinora/tokenizers/word_piece.h"

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/tokenizers/unigram.h"

namespace kinora::tokenizers {

WordPiece::WordPiece(const Vocabulary& vocabulary, Rules rules, std::string_view where)
    : rules_(std::move(rules)) {
  KINORA_CHECK(rules_.unk >= 0, kIo, where,
               ": a token for unknown words must be in the vocabulary");
  vocabulary.each([&](std::string_view token, int64_t id) {
    KINORA_CHECK(token.size() <= Unigram::kMaxPieceBytes, kIo, where,
                 ": a token must have at most ", Unigram::kMaxPieceBytes, " bytes, got ",
                 token.size());
    first_.add(token, id);
    if (token.starts_with(rules_.continuing_subword_prefix)) {
      rest_.add(token.substr(rules_.continuing_subword_prefix.size()), id);
    }
  });
}

void WordPiece::encode(std::string_view word, std::vector<int64_t>& ids,
                       Scratch& /*scratch*/) const {
  const size_t before = ids.size();
  const auto characters = std::count_if(word.begin(), word.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
  });
  bool is_known = characters <= rules_.max_input_chars_per_word;
  for (size_t at = 0; is_known && at < word.size();) {
    const auto found = (at == 0 ? first_ : rest_).longest_prefix(word.substr(at));
    is_known = found.has_value();
    if (is_known) {
      ids.push_back(found->value);
      at += found->size;
    }
  }
  if (!is_known) {
    ids.resize(before);
    ids.push_back(rules_.unk);
  }
}

}  // namespace kinora::tokenizers
