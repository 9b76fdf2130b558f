#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kinora::tokenizers {

/// Ids are below this; published vocabularies have up to 300,000.
inline constexpr int64_t kMaxTokenId = int64_t{1} << 24;

/// Tokens and their ids.
class Vocabulary {
 public:
  /// A token that is there gets the new id. Error (kIo), which begins with `where`: the id is
  /// negative or at least kMaxTokenId.
  void add(std::string_view token, int64_t id, std::string_view where);

  /// -1 if there is none.
  [[nodiscard]] int64_t id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }

  /// Null if no token has this id.
  [[nodiscard]] const std::string* token_of(int64_t id) const {
    return id >= 0 && id < size() ? tokens_[static_cast<size_t>(id)] : nullptr;
  }

  /// The largest id + 1: rows that a table of embeddings needs.
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

  template <typename Use>
  void each(const Use& use) const {
    for (const auto& [token, id] : ids_) {
      use(token, id);
    }
  }

  /// The ids of the tokens "<0x00>" to "<0xFF>" of single bytes; -1 for those that are not there.
  [[nodiscard]] std::vector<int64_t> byte_ids() const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // into ids_, whose nodes stay where they are
};

}  // namespace kinora::tokenizers
