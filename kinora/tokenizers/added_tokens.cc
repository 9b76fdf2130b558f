#include "kinora/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

bool is_within_word(std::string_view text, const TextRange& range) {
  const std::string_view before = text.substr(0, range.begin);
  const std::string_view after = text.substr(range.end);
  return (!before.empty() &&
          is_word_character(code_point_at(before, last_character(before)).value)) ||
         (!after.empty() && is_word_character(code_point_at(after, 0).value));
}

}  // namespace

void AddedTokens::add(AddedToken token, std::string_view sought) {
  (token.normalized ? normalized_ : raw_).add(sought, token.id);
  by_content_.insert_or_assign(token.content, token.id);
  by_id_.insert_or_assign(token.id, std::move(token));
}

std::vector<AddedTokens::Found> AddedTokens::find(std::string_view text, bool normalized) const {
  std::vector<Found> all;
  const ByteTrie& trie = normalized ? normalized_ : raw_;
  if (trie.empty()) {
    return all;
  }
  size_t last_end = 0;
  for (size_t at = 0; at < text.size();) {
    const auto match = trie.longest_prefix(text.substr(at));
    const AddedToken* token = match ? this->at(match->value) : nullptr;
    // One that another of the same id has replaced is not looked for any more.
    if (token == nullptr || token->normalized != normalized) {
      ++at;
      continue;
    }
    TextRange range{at, at + match->size};
    at = range.end;
    if (token->single_word && is_within_word(text, range)) {
      continue;
    }
    while (token->lstrip && range.begin > last_end) {
      const size_t last = last_character(text.substr(0, range.begin));
      if (!is_whitespace(code_point_at(text, last).value)) {
        break;
      }
      range.begin = std::max(last, last_end);
    }
    while (token->rstrip && range.end < text.size()) {
      const CodePoint next = code_point_at(text, range.end);
      if (!is_whitespace(next.value)) {
        break;
      }
      range.end += next.size;
    }
    all.push_back({range, token->id});
    last_end = range.end;
    at = std::max(at, range.end);
  }
  return all;
}

}  // namespace kinora::tokenizers
