#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kinora/tokenizers/flat_map.h"

namespace kinora::tokenizers {

/// Which of many words begin at a place of a text.
class ByteTrie {
 public:
  struct Match {
    size_t size;  ///< bytes
    int64_t value;
  };

  /// `value` is 0 or more; a word that is there gets the new one. An empty word never matches.
  void add(std::string_view word, int64_t value) {
    uint64_t node = 0;
    for (const char byte : word) {
      const uint64_t key = node << 8 | static_cast<unsigned char>(byte);
      const uint64_t* found = edges_.find(key);
      if (found == nullptr) {
        edges_.set(key, ++num_nodes_ << kValueBits);
        node = num_nodes_;
      } else {
        node = *found >> kValueBits;
      }
      last_key_ = key;
    }
    if (!word.empty()) {
      edges_.set(last_key_, node << kValueBits | static_cast<uint64_t>(value + 1));
      starts_[static_cast<unsigned char>(word[0])] = true;
    }
  }

  /// Calls use(Match) for every word with which `text` begins, shorter ones first.
  template <typename Use>
  void each_prefix(std::string_view text, const Use& use) const {
    uint64_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint64_t* found = edges_.find(node << 8 | static_cast<unsigned char>(text[i]));
      if (found == nullptr) {
        return;
      }
      if (const uint64_t value = *found & kValueMask; value != 0) {
        use(Match{i + 1, static_cast<int64_t>(value) - 1});
      }
      node = *found >> kValueBits;
    }
  }

  /// The longest word with which `text` begins.
  [[nodiscard]] std::optional<Match> longest_prefix(std::string_view text) const {
    std::optional<Match> longest;
    if (!text.empty() && may_start(text[0])) {
      each_prefix(text, [&](const Match& match) { longest = match; });
    }
    return longest;
  }

  /// Whether a word begins with this byte.
  [[nodiscard]] bool may_start(char byte) const {
    return starts_[static_cast<unsigned char>(byte)];
  }
  [[nodiscard]] bool empty() const { return num_nodes_ == 0; }

 private:
  // An edge's value: the node that it leads to, and the word's value + 1 or 0.
  static constexpr int kValueBits = 32;
  static constexpr uint64_t kValueMask = 0xFFFFFFFF;

  FlatMap edges_;
  uint64_t num_nodes_ = 0;
  uint64_t last_key_ = 0;
  bool starts_[256] = {};
};

}  // namespace kinora::tokenizers
