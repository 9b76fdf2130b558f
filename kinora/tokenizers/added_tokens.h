#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/tokenizers/byte_trie.h"
#include "kinora/tokenizers/pattern.h"

namespace kinora::tokenizers {

/// A token that is looked for in the text before anything is divided, as "<|endoftext|>".
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  ///< not within a word
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and that behind it
  bool normalized = false;   ///< looked for in the normalised text
  bool special = true;       ///< left out when ids are decoded
};

class AddedTokens {
 public:
  struct Found {
    TextRange range;
    int64_t id;
  };

  /// `sought` is the text to look for: the content, normalised if the token is. One with the id of
  /// another takes its place.
  void add(AddedToken token, std::string_view sought);

  /// Those in well-formed `text`, from left to right, the longest of each place; of the tokens that
  /// are, or are not, `normalized`.
  [[nodiscard]] std::vector<Found> find(std::string_view text, bool normalized) const;

  /// Null if no added token has this id.
  [[nodiscard]] const AddedToken* at(int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &found->second;
  }

  /// -1 if no added token has this content.
  [[nodiscard]] int64_t id_of(std::string_view content) const {
    const auto found = by_content_.find(content);
    return found == by_content_.end() ? -1 : found->second;
  }

  /// The largest id + 1.
  [[nodiscard]] int64_t size() const { return by_id_.empty() ? 0 : by_id_.rbegin()->first + 1; }

 private:
  std::map<int64_t, AddedToken> by_id_;
  std::map<std::string, int64_t, std::less<>> by_content_;
  ByteTrie raw_;
  ByteTrie normalized_;
};

}  // namespace kinora::tokenizers
