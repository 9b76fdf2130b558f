#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// How the files of others name and cut the tensors of a model.
namespace kinora::nn {

/// One of our tensors in files of another naming.
struct OtherName {
  std::string path;  ///< ours
  /// Theirs: laid one after the other along dim 0, these are ours.
  std::vector<std::string> keys;
  /// Keys under which such files repeat a tensor of one key.
  std::vector<std::string> copies = {};
  /// Shape of theirs where it has other dims than ours for the same elements; [] = as ours.
  std::vector<int64_t> shape = {};
  /// Rows of each of `keys`; [] = all have as many.
  std::vector<int64_t> rows = {};
  /// The one key's tensor has its rows' second half first.
  bool swaps_halves = false;
  /// Rows of a head, where the first `num_split` keys' tensors have in each head the rows of even
  /// number first: so lie queries and keys whose rotary positions turn dims d and d + head / 2
  /// together, in place of our 2 d and 2 d + 1. 0: all lie as ours.
  int64_t split_head = 0;
  size_t num_split = 0;
  /// Rows of a head, where the one key's tensor has those of a head's queries, keys and values
  /// together, head by head; ours has all queries, then all keys, then all values. 0: it has them
  /// as ours.
  int64_t packed_head = 0;

  /// Whether keys[part] has our rows in another order.
  [[nodiscard]] bool moves_rows(size_t part) const {
    return swaps_halves || packed_head > 0 || (split_head > 0 && part < num_split);
  }
};

/// Rows of a tensor.
struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

/// Which of our tensor's `rows` rows are those of keys[part].
[[nodiscard]] inline RowRange rows_of_key(const OtherName& name, size_t part, int64_t rows) {
  if (name.rows.empty()) {
    const int64_t count = rows / static_cast<int64_t>(name.keys.size());
    return {static_cast<int64_t>(part) * count, count};
  }
  RowRange range;
  for (size_t i = 0; i < part; ++i) {
    range.begin += name.rows[i];
  }
  range.count = name.rows[part];
  return range;
}

using Naming = std::vector<OtherName>;

}  // namespace kinora::nn
